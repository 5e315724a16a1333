"""Operations on number: one whole number."""

from outrider_models.corpus.op import Op, op

STEPS: tuple[Op, ...] = (
    op("add", "add {k} | increase it by {k}", "result + {k}", lambda r, k: sum((r, k))),
    op("subtract", "subtract {k} | decrease it by {k}", "result - {k}", lambda r, k: -(k - r)),
    op("multiply", "multiply by {k} | scale it by {k}", "result * {k}", lambda r, k: k * r),
    op("double", "double it | multiply it by two", "result * 2", lambda r, k: r + r),
    op("square", "square it | raise it to the power of two", "result * result", lambda r, k: r**2),
    op("negate", "negate it | flip its sign", "-result", lambda r, k: 0 - r),
    op("abs", "take the absolute value | make it absolute", "abs(result)", lambda r, k: max(r, -r)),
    op("halve", "halve it rounding down | divide it by two rounding down", "result // 2", lambda r, k: r >> 1),
    op("divide", "divide by {k} rounding down | take the whole part of dividing by {k}", "result // {k}",
        lambda r, k: (r - r % k) // k),
    op("remainder", "take the remainder modulo {k} | take it modulo {k}", "result % {k}",
        lambda r, k: r - r // k * k),
    op("cap", "cap it at {k} | limit it to at most {k}", "min(result, {k})", lambda r, k: k if r > k else r),
    op("floor", "raise it to at least {k} | make it no smaller than {k}", "max(result, {k})",
        lambda r, k: k if r < k else r),
)  # fmt: skip
ENDS: tuple[Op, ...] = (
    op("value", "return the number | return the resulting number", "result", lambda r, k: r),
    op("even", "return whether it is even | return True if it is even", "result % 2 == 0", lambda r, k: not r % 2),
    op("positive", "return whether it is positive | return True if it is above zero", "result > 0",
        lambda r, k: max(r, 0) != 0),
    op("text", "return it as text | return it as a string", "str(result)", lambda r, k: f"{r}"),
    op("digits", "return the sum of its digits | return its digit sum", "sum(int(d) for d in str(abs(result)))",
        lambda r, k: sum(map(int, f"{max(r, -r)}"))),
    op("width", "return how many digits it has | return its number of digits", "len(str(abs(result)))",
        lambda r, k: len(f"{max(r, -r)}")),
)  # fmt: skip
