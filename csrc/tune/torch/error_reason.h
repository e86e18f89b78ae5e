// Text of an error for users.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace commprof::tune {

// Returns an error's message, without the C++ stack that torch's errors carry.
inline std::string reasonOf(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

} // namespace commprof::tune
