"""Vectors of 16 float32 for numba: a value that LLVM keeps in registers, with the few operations kernels need.

numba's own loops do not do for sums: without ``fastmath`` LLVM must add one number after the other, and with it the
order of the additions, and so the last bits of a model, would be the compiler's choice. Here the order is written down.
LLVM splits a vector where registers are narrower; the sums stay the same.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

#: Numbers in a vector: one AVX-512 register.
LANES = 16

#: Typed as anything: kernels call what comes out without the first argument.
_operation: Any = intrinsic

_INDEX = ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


_vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Any) -> None:
        super().__init__(manager, type_, _VECTOR)  # type: ignore[no-untyped-call]


@_operation
def load(context: Any, array: Any, index: Any) -> Any:
    """``array[index : index + LANES]`` of a flat float32 array; the caller stays within its bounds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_point(context, builder, signature.args[0], *args), align=4)

    return _sign(_vector, array, types.intp), generate


@_operation
def store(context: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index : index + LANES] = value``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _point(context, builder, signature.args[0], *args[:2]), align=4)
        return context.get_dummy_value()

    return _sign(types.void, array, types.intp, _vector), generate


@_operation
def spread(context: Any, array: Any, index: Any) -> Any:
    """``array[index]`` in every place."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _repeat(builder, builder.load(builder.gep(data, [args[1]], inbounds=True)))

    return _sign(_vector, array, types.intp), generate


@_operation
def fill(context: Any, value: Any) -> Any:
    """Return a vector of one number."""
    return _vector(types.float32), lambda context, builder, signature, args: _repeat(builder, args[0])


@_operation
def add(context: Any, first: Any, second: Any) -> Any:
    """``first + second``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return _vector(_vector, _vector), generate


@_operation
def multiply_add(context: Any, first: Any, second: Any, third: Any) -> Any:
    """``first * second + third``, rounded once where the processor has such an instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, kind = f"llvm.fmuladd.v{LANES}f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.call(function, args)

    return _vector(_vector, _vector, _vector), generate


@_operation
def add_up(context: Any, value: Any) -> Any:
    """Sum of the numbers of a vector: halves are added until one number is left."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(_fold(builder, args[0], 1), ir.Constant(_INDEX, 0))

    return types.float32(_vector), generate


@_operation
def add_sums(context: Any, array: Any, index: Any, count: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """Add to the first ``count`` of ``array[index : index + 4]`` the sums of four vectors, each as in `add_up`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def pick(one: Any, other: Any, places: list[int]) -> Any:
            return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INDEX, len(places)), places))

        a, b, c, d = (_fold(builder, vector, 4) for vector in args[3:])
        ab, cd = (
            builder.fadd(pick(one, other, [0, 4, 1, 5]), pick(one, other, [2, 6, 3, 7]))
            for one, other in ((a, b), (c, d))
        )
        sums = builder.fadd(pick(ab, cd, [0, 1, 4, 5]), pick(ab, cd, [2, 3, 6, 7]))
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        for lane in range(4):
            with builder.if_then(builder.icmp_signed(">", args[2], ir.Constant(args[2].type, lane))):
                at = builder.gep(data, [builder.add(args[1], ir.Constant(args[1].type, lane))], inbounds=True)
                value = builder.extract_element(sums, ir.Constant(_INDEX, lane))
                builder.store(builder.fadd(builder.load(at), value), at)
        return context.get_dummy_value()

    return _sign(types.void, array, types.intp, types.intp, *[_vector] * 4), generate


@_operation
def where_larger(context: Any, first: Any, second: Any, yes: Any, no: Any) -> Any:
    """``yes`` where ``first`` is larger than ``second`` or NaN, else ``no``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        larger = builder.fcmp_ordered(">", args[0], args[1])
        return builder.select(builder.or_(larger, builder.fcmp_unordered("uno", args[0], args[0])), *args[2:])

    return _vector(_vector, _vector, _vector, _vector), generate


@_operation
def where_equal(context: Any, first: Any, second: Any, yes: Any, no: Any) -> Any:
    """``yes`` where ``first`` equals ``second``, else ``no``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("==", args[0], args[1]), *args[2:])

    return _vector(_vector, _vector, _vector, _vector), generate


def _sign(result: Any, array: Any, *others: Any) -> Any:
    """Return the signature of an operation on an array, which must be flat float32: its memory is read as such."""
    flat = isinstance(array, types.Array) and (array.ndim, array.layout, array.dtype) == (1, "C", types.float32)
    if not flat:
        raise TypingError(f"expected a flat float32 array, got {array}")
    return result(array, *others)


def _fold(builder: Any, vector: Any, size: int) -> Any:
    """Add the halves of a vector until ``size`` numbers are left."""
    while vector.type.count > size:
        half = vector.type.count // 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        lower, upper = (
            builder.shuffle_vector(
                vector, undefined, ir.Constant(ir.VectorType(_INDEX, half), list(range(start, start + half)))
            )
            for start in (0, half)
        )
        vector = builder.fadd(lower, upper)
    return vector


def _repeat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))


def _point(context: Any, builder: Any, type_: Any, array: Any, index: Any) -> Any:
    data = context.make_array(type_)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index], inbounds=True), _VECTOR.as_pointer())
