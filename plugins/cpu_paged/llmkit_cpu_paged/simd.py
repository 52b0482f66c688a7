"""Sixteen float32 lanes as a value in numba code.

Every operation is one LLVM vector instruction, so what happens to a lane, and in which order, is what the
kernel says: it depends neither on the lane nor on what the optimiser made of a loop. Memory may hold float32,
float16 (as int16) or bfloat16 (as uint16); registers hold float32. LLVM splits what is too wide for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba.core.cgutils
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from llmkit_cpu_paged.jit import inline

LANES = 16

cgutils: Any = numba.core.cgutils

_F32, _I32, _I16 = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_VECTOR = ir.VectorType(_F32, LANES)


def instruction(define: Callable[..., Any]) -> Any:
    """numba's ``intrinsic``, untyped: callers give one argument less than the definition has."""
    return intrinsic(define)


class Lanes(types.Type):
    """numba's type of a vector."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)  # type: ignore[no-untyped-call]


# ---- memory: element (row, column) is the column-th of the contiguous elements at array[row] ----


@instruction
def load(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
    """Elements ``column`` to ``column + 16`` of ``array[row]``."""
    return lanes(array, types.intp, types.intp), _loader(_VECTOR)


@instruction
def load_one(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
    """One element, as float32."""
    return types.float32(array, types.intp, types.intp), _loader(_F32)


@instruction
def store(typingctx: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """Lanes into elements ``column`` to ``column + 16`` of ``array[row]``."""
    return types.void(array, types.intp, types.intp, lanes), _storer(_VECTOR)


@instruction
def store_one(typingctx: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """A float32 into one element."""
    return types.void(array, types.intp, types.intp, types.float32), _storer(_F32)


@instruction
def take_ticket(typingctx: Any, counter: Any) -> Any:
    """``counter[0]``, then one more for the next thread that asks; atomic."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen


# ---- arithmetic ----


@instruction
def splat(typingctx: Any, value: Any) -> Any:
    """The same float32 in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return lanes(types.float32), codegen


@instruction
def add(typingctx: Any, a: Any, b: Any) -> Any:
    return lanes(lanes, lanes), _elementwise(lambda builder, a, b: builder.fadd(a, b))


@instruction
def sub(typingctx: Any, a: Any, b: Any) -> Any:
    return lanes(lanes, lanes), _elementwise(lambda builder, a, b: builder.fsub(a, b))


@instruction
def mul(typingctx: Any, a: Any, b: Any) -> Any:
    return lanes(lanes, lanes), _elementwise(lambda builder, a, b: builder.fmul(a, b))


@instruction
def div(typingctx: Any, a: Any, b: Any) -> Any:
    return lanes(lanes, lanes), _elementwise(lambda builder, a, b: builder.fdiv(a, b))


@instruction
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""

    def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        return builder.call(function, [a, b, c])

    return lanes(lanes, lanes, lanes), _elementwise(fused)


@instruction
def clamp(typingctx: Any, a: Any, low: Any, high: Any) -> Any:
    """NaN stays NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, low, high = args[0], _splat(builder, args[1]), _splat(builder, args[2])
        value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
        return builder.select(builder.fcmp_ordered(">", value, high), high, value)

    return lanes(lanes, types.float32, types.float32), codegen


@instruction
def keep(typingctx: Any, value: Any, low: Any, high: Any, other: Any) -> Any:
    """Lanes ``low`` to ``high`` of ``value``, ``other`` elsewhere."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES)))
        low, high = (_splat(builder, builder.trunc(bound, _I32)) for bound in args[1:3])
        inside = builder.and_(builder.icmp_signed(">=", index, low), builder.icmp_signed("<", index, high))
        return builder.select(inside, args[0], _splat(builder, args[3]))

    return lanes(lanes, types.intp, types.intp, types.float32), codegen


@instruction
def first(typingctx: Any, value: Any) -> Any:
    """The first lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], ir.Constant(_I32, 0))

    return types.float32(lanes), codegen


@instruction
def largest(typingctx: Any, value: Any) -> Any:
    def larger(builder: Any, a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_unordered(">", a, b), a, b)

    return types.float32(lanes), _tree(larger)


@instruction
def total(typingctx: Any, value: Any) -> Any:
    """Sum of all lanes, as a tree of halves."""
    return types.float32(lanes), _tree(lambda builder, a, b: builder.fadd(a, b))


@instruction
def times_power_of_two(typingctx: Any, value: Any, exponent: Any) -> Any:
    """``value * 2**n`` where ``exponent`` holds ``n`` in the low bits of ``n + 1.5 * 2**23``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integers = ir.VectorType(_I32, LANES)
        shift = ir.Constant(integers, [23] * LANES)
        power = builder.shl(builder.bitcast(args[1], integers), shift)
        return builder.bitcast(builder.add(builder.bitcast(args[0], integers), power), _VECTOR)

    return lanes(lanes, lanes), codegen


_ROUNDER = 1.5 * 2**23
"""Adding it to a small float32 leaves the nearest integer in the low bits."""


@inline
def exp(x: Any) -> Any:
    """To about 2 units in the last place; 1e-38 at and below -87. After Cephes' ``expf``."""
    x = clamp(x, -87.0, 88.0)
    biased = fma(x, splat(1.44269504088896341), splat(_ROUNDER))
    whole = sub(biased, splat(_ROUNDER))
    x = fma(whole, splat(-0.693359375), x)
    x = fma(whole, splat(2.12194440e-4), x)
    y = fma(splat(1.9875691500e-4), x, splat(1.3981999507e-3))
    y = fma(y, x, splat(8.3334519073e-3))
    y = fma(y, x, splat(4.1665795894e-2))
    y = fma(y, x, splat(1.6666665459e-1))
    y = fma(y, x, splat(5.0000001201e-1))
    y = fma(y, mul(x, x), add(x, splat(1.0)))
    return times_power_of_two(y, biased)


@inline
def tanh(x: Any) -> Any:
    """``1 - 2 / (exp(2x) + 1)``: right to about 1e-7, absolutely."""
    return sub(splat(1.0), div(splat(2.0), add(exp(add(x, x)), splat(1.0))))


# ---- code generation ----


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, zeros)


def _elementwise(operation: Callable[..., Any]) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return operation(builder, *args)

    return codegen


def _tree(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Combine the upper half of the lanes with the lower until one is left."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        for level in reversed(range(int(math.log2(LANES)))):
            half = 2**level
            low, high = (
                ir.Constant(ir.VectorType(_I32, half), list(range(start, start + half)))
                for start in (0, half)
            )
            value = operation(
                builder, builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high)
            )
        return builder.extract_element(value, ir.Constant(_I32, 0))

    return codegen


def _loader(register: Any) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = signature.args[0].dtype
        pointer = _address(context, builder, signature.args[0], args, register)
        return _widen(builder, builder.load(pointer, align=element.bitwidth // 8), element, register)

    return codegen


def _storer(register: Any) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = signature.args[0].dtype
        pointer = _address(context, builder, signature.args[0], args, register)
        builder.store(_narrow(builder, args[3], element, register), pointer, align=element.bitwidth // 8)
        return context.get_dummy_value()

    return codegen


def _address(context: Any, builder: Any, array_type: Any, args: Any, register: Any) -> Any:
    array = context.make_array(array_type)(context, builder, args[0])
    stride = cgutils.unpack_tuple(builder, array.strides, array_type.ndim)[0]
    item = ir.Constant(stride.type, array_type.dtype.bitwidth // 8)
    offset = builder.add(builder.mul(args[1], stride), builder.mul(args[2], item))
    start = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])
    return builder.bitcast(start, _like(register, _memory(array_type.dtype)).as_pointer())


def _memory(element: Any) -> Any:
    return {types.float32: _F32, types.int16: ir.HalfType(), types.uint16: _I16}[element]


def _like(register: Any, element: Any) -> Any:
    return ir.VectorType(element, LANES) if isinstance(register, ir.VectorType) else element


def _constant(register: Any, value: int) -> Any:
    return ir.Constant(_like(register, _I32), [value] * LANES if register is _VECTOR else value)


def _widen(builder: Any, value: Any, element: Any, register: Any) -> Any:
    """A loaded value as float32."""
    if element == types.float32:
        return value
    if element == types.int16:
        return builder.fpext(value, register)
    bits = builder.zext(value, _like(register, _I32))
    return builder.bitcast(builder.shl(bits, _constant(register, 16)), register)


def _narrow(builder: Any, value: Any, element: Any, register: Any) -> Any:
    """A float32 rounded to nearest, ties to even, as it is stored. NaN stays NaN."""
    if element == types.float32:
        return value
    if element == types.int16:
        return builder.fptrunc(value, _like(register, ir.HalfType()))
    bits = builder.bitcast(value, _like(register, _I32))
    odd = builder.and_(builder.lshr(bits, _constant(register, 16)), _constant(register, 1))
    rounded = builder.add(bits, builder.add(odd, _constant(register, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.select(is_nan, _constant(register, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(bits, _constant(register, 16)), _like(register, _I16))
