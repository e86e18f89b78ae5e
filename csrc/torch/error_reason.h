// What to tell users of an error.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace commprof {

// torch's own carry a stack of C++ frames, which says nothing to them.
inline std::string reasonOf(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

} // namespace commprof
