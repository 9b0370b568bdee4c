// Activation functions of gates, in registers of any width, as fractions: what is multiplied is divided by once.
//
// V: a register F of kLanes numbers, with operations named for what they do; `max` and `min` give the second where either is
// NaN, `when_negative(x, a, b)` gives a where the sign of x is set.

#ifndef ONNXQ_RECURRENT_KERNELS_GATES_H_
#define ONNXQ_RECURRENT_KERNELS_GATES_H_

#include <math.h>

#include "../schedule.h"

namespace onnxq {
namespace {

// e^x for x ≤ 0, at least e^-87, NaN where x is; within 2^-22 of itself: x = n · ln 2 + r, and Taylor's polynomial of r.
template <class V>
typename V::F exp_of(typename V::F x) {
  using F = typename V::F;
  const F least = V::max(V::all(-87.0f), x);
  const F n = V::round(V::multiply(least, V::all(1.44269504f)));
  F r = V::fma(n, V::all(-0.693359375f), least);
  r = V::fma(n, V::all(2.12194440e-4f), r);
  F y = V::all(1.0f / 720);
  y = V::fma(y, r, V::all(1.0f / 120));
  y = V::fma(y, r, V::all(1.0f / 24));
  y = V::fma(y, r, V::all(1.0f / 6));
  y = V::fma(y, r, V::all(0.5f));
  y = V::fma(y, r, V::all(1.0f));
  y = V::fma(y, r, V::all(1.0f));
  return V::times_power(y, n);
}

// over / under, under from 1 to 2.
template <class V>
struct Fraction {
  typename V::F over, under;

  typename V::F value() const { return V::divide(over, under); }
};

template <class V>
Fraction<V> sigmoid(typename V::F x) {
  const typename V::F e = exp_of<V>(V::subtract(V::all(0.0f), V::magnitude(x)));
  return {V::when_negative(x, e, V::all(1.0f)), V::add(e, V::all(1.0f))};
}

template <class V>
Fraction<V> tanh_of(typename V::F x) {
  const typename V::F size = V::magnitude(x), e = exp_of<V>(V::multiply(size, V::all(-2.0f)));
  return {V::with_sign_of(x, V::subtract(V::all(1.0f), e)), V::add(e, V::all(1.0f))};
}

template <class V>
typename V::F clipped(typename V::F x, float clip) {
  return V::min(V::all(clip), V::max(V::all(-clip), x));
}

// Of gates i, o, f and g, and the state c, the new states. All within 2^-20 of what they are by definition.
template <class V>
struct Lstm {
  typename V::F h, c;

  Lstm(const typename V::F (&gate)[4], typename V::F before, float clip) {
    const Fraction<V> i = sigmoid<V>(clipped<V>(gate[0], clip)), o = sigmoid<V>(clipped<V>(gate[1], clip));
    const Fraction<V> f = sigmoid<V>(clipped<V>(gate[2], clip)), g = tanh_of<V>(clipped<V>(gate[3], clip));
    const typename V::F added = V::divide(V::multiply(i.over, g.over), V::multiply(i.under, g.under));
    c = V::fma(f.value(), before, added);
    const Fraction<V> t = tanh_of<V>(c);
    h = V::divide(V::multiply(o.over, t.over), V::multiply(o.under, t.under));
  }
};

// What is left of the state h and what is new.
template <class V>
typename V::F gru(typename V::F z, typename V::F fresh, typename V::F h, float clip) {
  const typename V::F n = tanh_of<V>(clipped<V>(fresh, clip)).value();
  return V::fma(z, V::subtract(h, n), n);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_KERNELS_GATES_H_
