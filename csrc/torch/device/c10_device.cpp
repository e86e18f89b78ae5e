#include "torch/device/c10_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace commprof {

namespace {

#if defined(__GXX_ABI_VERSION)
// Returns the function that a virtual call of `member` runs. In the Itanium C++
// ABI, a pointer to a virtual member holds the member's offset in the virtual
// table, plus 1. On ARM, the 1 is in the adjustment instead.
template <class Class, class Member>
const void* reached(const Class& object, Member member) {
  struct {
    uintptr_t place;
    uintptr_t adjustment;
  } parts{};
  static_assert(sizeof(member) == sizeof(parts));
  std::memcpy(&parts, &member, sizeof(parts));
  const char* functions = nullptr;
  std::memcpy(&functions, static_cast<const void*>(&object), sizeof(functions));
  const void* found = nullptr;
  std::memcpy(&found, functions + (parts.place & ~uintptr_t(1)), sizeof(found));
  return found;
}

template <class Interface>
const void* captureFunction(const Interface& guard) {
  if constexpr (requires(c10::Stream s) { guard.isStreamCapturing(s); }) {
    return reached(guard, &Interface::isStreamCapturing);
  } else {
    return nullptr;
  }
}
#endif

} // namespace

bool implementsCaptureQuery(c10::DeviceType type) noexcept {
#if defined(__GXX_ABI_VERSION)
  const auto* guard =
      c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
  const void* function = guard == nullptr ? nullptr : captureFunction(*guard);
  Dl_info found{};
  return function == nullptr || dladdr(function, &found) == 0 ||
      found.dli_sname == nullptr || found.dli_saddr != function ||
      std::strstr(found.dli_sname, "DeviceGuardImplInterface") == nullptr;
#else
  return true;
#endif
}

} // namespace commprof
