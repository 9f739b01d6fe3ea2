"""What a run listens on: loopback, unless its config says that other machines take part."""

from __future__ import annotations

import threading
from pathlib import Path

from programs import Done, Programs
from small_runs import Cli, wait_for

LISTENING = "0A"


def listeners(session_of: int) -> dict[str, str]:
    """Address:port that processes of a session and their descendants listen on -> command."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {session_of}
    while more := {child for child, parent in parents.items() if parent in family and child not in family}:
        family |= more
    found: dict[str, str] = {}
    for pid in family:
        try:
            sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if str(link.readlink()).startswith("socket:[")}
            tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        except OSError:
            continue
        for line in (line.split() for table in tables for line in table):
            if line[3] == LISTENING and f"socket:[{line[9]}]" in sockets:
                found[line[1]] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def is_loopback(address: str) -> bool:
    """Whether an address of `listeners` is one of this machine alone."""
    return address.startswith(("0100007F:", "00000000000000000000000001000000:"))


def test_two_ranks_listen_on_loopback_alone(programs: Programs, tmp_path: Path) -> None:
    cli = Cli(programs, tmp_path)
    done: list[Done] = []
    seen: dict[str, str] = {}
    two = ["strategy=ddp", "cluster.processes_per_node=2", "reward.terms.digits.sleep=0.3", "trainer.max_steps=12", "evaluation=none"]
    thread = threading.Thread(target=lambda: done.append(cli.train(*two)))
    thread.start()

    def looked() -> bool:
        if cli.lines() >= 1:
            seen.update(listeners(programs.pid))
        return not thread.is_alive()

    wait_for(looked, 120)
    assert done[0].code == 0, done[0].err
    assert seen, "the ranks do listen somewhere"
    others = {address: command for address, command in seen.items() if not is_loopback(address)}
    assert not others
