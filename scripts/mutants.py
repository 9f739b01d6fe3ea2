"""Mutants of a module: the same source with one small error each, found by general operators on its syntax tree.

sign           -x -> x, a + b <-> a - b
denominator    a / b -> a, another reduction in a loss's dataclass
factor         a * b -> a
clip side      min <-> max (also minimum, amin, ...), a bound dropped or turned around, names with low/high or pos/neg swapped, < -> >=
mask           where_active(x) -> x, where(c, a, b) -> a or its branches swapped, ~x -> x, & <-> |
stop-gradient  x.detach() -> x, no_grad removed, and detach() put where a gradient should flow
condition      a test negated, and <-> or
function       x.abs() -> x (also square), x[a:b] -> x
constant       n -> n + 1 in arithmetic and bounds, a module's constant -> 0
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

REDUCTIONS = ("tokens", "rollout_mean", "rollout_constant", "rollouts", "micro_batch")
OPPOSITES = (("minimum", "maximum"), ("min", "max"), ("amin", "amax"))
SIDES = (("low", "high"), ("pos", "neg"), ("old", "sampler"))
NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
FLOWS = {"exp", "importance_ratio", "sigmoid", "minimum"}
"""calls whose result has a gradient in a loss"""
COLUMNS = {"logp_L"}
"""and inputs that have one"""
Found = tuple[str, ast.AST, ast.AST]
"""operator, node, what takes its place"""


@dataclass
class Mutant:
    """One error. function: dotted name inside the module ("" for the module itself)."""

    path: Path
    function: str
    operator: str
    line: int
    before: str
    after: str
    code: CodeType

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What an exclusion names: file stem, function, operator, the change."""
        return self.path.stem, self.function, self.operator, f"{self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}:{self.line} {self.function or 'module'}: {self.operator}: {self.before} -> {self.after}"


def mutants_of(path: Path, *, only: str | None = None) -> list[Mutant]:
    """All mutants of a file, in its order; of one function or class if `only` is given."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    made: dict[tuple[int, int, str, str], Mutant] = {}
    for function, (operator, node, substitute) in _sites(tree):
        if only is not None and function.split(".")[0] != only:
            continue
        memo: dict[int, ast.AST] = {}
        copied = copy.deepcopy(tree, memo)
        mutated = ast.fix_missing_locations(_Swap(memo[id(node)], substitute).visit(copied))
        before, after = (" ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(x))).split()) for x in (node, substitute))
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        mutant = Mutant(path, function, operator, line, before[:90], after[:90], compile(mutated, str(path), "exec"))
        made.setdefault((line, column, before, after), mutant)
    return list(made.values())


class _Swap(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, target: ast.AST, substitute: ast.AST) -> None:
        self.target, self.substitute = target, substitute

    def visit(self, node: ast.AST) -> ast.AST:
        return self.substitute if node is self.target else super().generic_visit(node)


def _sites(tree: ast.Module) -> Iterator[tuple[str, Found]]:
    """Every place an operator applies to, with the function it is in."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _is_number(statement.value):
            yield "", ("constant", statement.value, ast.Constant(0.0))
        elif isinstance(statement, ast.FunctionDef):
            for found in _function(statement):
                yield statement.name, found
        elif isinstance(statement, ast.ClassDef):
            for member in statement.body:
                if isinstance(member, ast.FunctionDef):
                    for found in _function(member):
                        yield f"{statement.name}.{member.name}", found
                elif isinstance(member, ast.AnnAssign):
                    for found in _class_variable(member):
                        yield statement.name, found


def _class_variable(node: ast.AnnAssign) -> Iterator[Found]:
    """A dataclass's ClassVars say how a loss is reduced and what it does with a correction."""
    value = node.value
    if not isinstance(value, ast.Constant) or "ClassVar" not in ast.unparse(node.annotation):
        return
    if value.value in REDUCTIONS:
        for other in REDUCTIONS:
            if other != value.value:
                yield "denominator", value, ast.Constant(other)
    elif isinstance(value.value, bool):
        yield "condition", value, ast.Constant(not value.value)


def _function(function: ast.FunctionDef) -> Iterator[Found]:
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function)}
    flows = True
    for decorator in function.decorator_list:
        if _is_no_grad(decorator):
            flows = False
            yield "stop-gradient", decorator, ast.parse("lambda function: function", mode="eval").body
    for statement in function.body:
        yield from _statement(statement, names, flows)


def _statement(node: ast.stmt, names: set[str], flows: bool) -> Iterator[Found]:
    """Operators in a statement and those inside it. What only words an error is left alone."""
    if isinstance(node, (ast.Raise, ast.Assert)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.FunctionDef):
        yield from _function(node)
        return
    if isinstance(node, ast.With) and any(_is_no_grad(item.context_expr) for item in node.items):
        yield "stop-gradient", node.items[0].context_expr, ast.parse("torch.enable_grad()", mode="eval").body
        flows = False
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        yield "condition", node.test, ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))
    if isinstance(node, ast.AugAssign) and type(node.op) in (ast.Add, ast.Sub):
        other = copy.deepcopy(node)
        other.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "sign", node, other
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "decorator_list", "returns", "args"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.stmt):
                yield from _statement(child, names, flows)
            elif isinstance(child, ast.withitem):
                continue
            elif isinstance(child, ast.AST):
                yield from _expression(child, names, flows)


def _expression(node: ast.AST, names: set[str], flows: bool) -> Iterator[Found]:
    if isinstance(node, (ast.JoinedStr, ast.Lambda)):
        return
    for operator, substitute in _changes(node, names, flows):
        yield operator, node, substitute
    flows = flows and not (isinstance(node, ast.Attribute) and node.attr == "detach")  # nothing flows there already
    for child in ast.iter_child_nodes(node):
        yield from _expression(child, names, flows)


def _changes(node: ast.AST, names: set[str], flows: bool) -> Iterator[tuple[str, ast.AST]]:
    """What may take the place of one expression."""
    if isinstance(node, ast.UnaryOp):
        if not isinstance(node.operand, ast.Constant):
            yield ("sign" if isinstance(node.op, ast.USub) else "mask"), copy.deepcopy(node.operand)
    elif isinstance(node, ast.BinOp):
        yield from _arithmetic(node)
    elif isinstance(node, ast.Compare):
        other = copy.deepcopy(node)
        other.ops[0] = NEGATED[type(node.ops[0])]()
        yield ("clip side" if isinstance(node.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)) else "condition"), other
        if _is_number(node.comparators[0]):
            other = copy.deepcopy(node)
            other.comparators[0] = _more(node.comparators[0])
            yield "constant", other
    elif isinstance(node, ast.BoolOp):
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", other
    elif isinstance(node, ast.IfExp) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        yield "condition", ast.IfExp(copy.deepcopy(node.test), copy.deepcopy(node.orelse), copy.deepcopy(node.body))
    elif isinstance(node, ast.Call):
        yield from _call(node, flows)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
        yield "function", copy.deepcopy(node.value)
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        yield from _name(node, names, flows)


def _arithmetic(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    texts = (ast.List, ast.Tuple, ast.JoinedStr)
    if isinstance(node.op, (ast.Add, ast.Sub)) and not isinstance(node.left, texts) and not isinstance(node.right, texts):
        yield "sign", ast.BinOp(copy.deepcopy(node.left), ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), copy.deepcopy(node.right))
    if isinstance(node.op, (ast.Mult, ast.Div)):
        yield ("factor" if isinstance(node.op, ast.Mult) else "denominator"), copy.deepcopy(node.left)
    if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        yield "mask", ast.BinOp(copy.deepcopy(node.left), ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd(), copy.deepcopy(node.right))
    for side in ("left", "right"):
        if _is_number(getattr(node, side)):
            other = copy.deepcopy(node)
            setattr(other, side, _more(getattr(node, side)))
            yield "constant", other


def _call(node: ast.Call, flows: bool) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
    for pair in OPPOSITES:
        if name in pair:
            other = copy.deepcopy(node)
            field = "attr" if isinstance(other.func, ast.Attribute) else "id"
            setattr(other.func, field, pair[1 - pair.index(name)])
            yield "clip side", other
    if name in ("clamp", "clip") and receiver is not None:
        yield from _bounds(node, receiver)
    if name == "where_active":
        yield "mask", copy.deepcopy(node.args[0])
    if name == "where" and len(node.args) == 3:
        condition, first, second = (copy.deepcopy(argument) for argument in node.args)
        yield "mask", ast.Call(copy.deepcopy(node.func), [condition, second, first], [])
        if not isinstance(first, ast.Constant):
            yield "mask", copy.deepcopy(node.args[1])
    if name == "detach" and receiver is not None:
        yield "stop-gradient", copy.deepcopy(receiver)
    if name in ("abs", "square") and receiver is not None and not node.args:
        yield "function", copy.deepcopy(receiver)
    if name in FLOWS and flows:
        yield "stop-gradient", _detached(node)


def _bounds(node: ast.Call, receiver: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """One side of a clamp dropped, the only side turned around, all of it dropped, or moved."""
    yield "clip side", copy.deepcopy(receiver)
    if len(node.args) == 2:
        for side in (0, 1):
            other = copy.deepcopy(node)
            other.args[side] = ast.Constant(None)
            yield "clip side", other
    if len(node.keywords) == 1 and node.keywords[0].arg in ("min", "max"):
        other = copy.deepcopy(node)
        other.keywords[0].arg = "max" if node.keywords[0].arg == "min" else "min"
        yield "clip side", other
        if _is_number(node.keywords[0].value):
            other = copy.deepcopy(node)
            other.keywords[0].value = _more(node.keywords[0].value)
            yield "constant", other


def _name(node: ast.Name | ast.Attribute, names: set[str], flows: bool) -> Iterator[tuple[str, ast.AST]]:
    field = "attr" if isinstance(node, ast.Attribute) else "id"
    name = getattr(node, field)
    if flows and isinstance(node, ast.Attribute) and name in COLUMNS:
        yield "stop-gradient", _detached(node)
    for pair in SIDES:
        for side in pair:
            parts = name.split("_")
            if side in parts:
                swapped = "_".join(pair[1 - pair.index(side)] if part == side else part for part in parts)
                if swapped in names:
                    other = copy.deepcopy(node)
                    setattr(other, field, swapped)
                    yield "clip side", other


def _detached(node: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(copy.deepcopy(node), "detach", ast.Load()), [], [])


def _is_no_grad(node: ast.AST) -> bool:
    return ast.unparse(node).startswith("torch.no_grad")


def _is_number(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


def _more(node: ast.AST) -> ast.Constant:
    assert isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    return ast.Constant(node.value + 1)
