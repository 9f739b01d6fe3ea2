"""The look of report.html."""

CSS = """
:root { color-scheme: light; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --card: #ffffff; --back: #f8fafc; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 12px; }
header { display: flex; gap: 14px; align-items: center; flex-wrap: wrap; }
.soft, .note { color: var(--soft); }
.note { margin: 2px 0 12px; font-size: 14px; }
.badge { font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 99px; color: #fff; background: #64748b; }
.badge.finished { background: #059669; } .badge.failed, .badge.died { background: #dc2626; }
.badge.running { background: #2563eb; } .badge.preempted { background: #d97706; }
.reason { background: #fef2f2; border: 1px solid #fecaca; border-radius: 8px; padding: 10px 14px; margin: 16px 0 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0 0; }
.fact, figure, .box { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.fact { flex: 1 0 120px; padding: 12px 16px; }
.fact b { display: block; font-size: 18px; white-space: nowrap; font-weight: 650; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 12px 6px; }
figcaption { display: flex; justify-content: space-between; padding: 0 4px 4px; font-size: 14px; }
figcaption i { font-style: normal; color: var(--soft); font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: #64748b; }
svg .grid { stroke: #e2e8f0; stroke-width: 1; }
.legend { font-size: 12px; display: flex; gap: 12px; flex-wrap: wrap; padding: 0 4px 2px; }
.box { overflow-x: auto; }
.box + .note { margin-top: 16px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 7px 14px; border-top: 1px solid var(--line); }
tr:first-child > th, tr:first-child > td { border-top: 0; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, td.text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 180px; max-width: 520px; }
.good { color: #047857; } .bad { color: #b91c1c; }
.bar { display: flex; height: 16px; border-radius: 8px; overflow: hidden; margin: 14px 14px 6px; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); padding: 4px 0; }
"""
