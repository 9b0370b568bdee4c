// How the C ABI returns errors.
#pragma once

#include <utility>

#include "problem.h"

namespace onnxq {

// Null for none, or a sentence that stays readable until the same thread asks again.
inline const char* kept(Error error) {
  thread_local std::string last;
  last = std::move(error);
  return last.empty() ? nullptr : last.c_str();
}

}  // namespace onnxq
