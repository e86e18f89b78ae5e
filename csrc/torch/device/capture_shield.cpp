#include "torch/device/capture_shield.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

namespace commprof {

namespace {

struct Wanted {
  std::string name;
  void* found = nullptr;
};

// A library that Python loaded for itself alone is not in the global scope.
int lookInto(dl_phdr_info* info, size_t, void* data) {
  auto& wanted = *static_cast<Wanted*>(data);
  const char* file = info->dlpi_name;
  if (file == nullptr ||
      (std::strstr(file, "libcudart") == nullptr &&
       std::strstr(file, "libamdhip64") == nullptr)) {
    return 0;
  }
  if (void* library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD)) {
    wanted.found = dlsym(library, wanted.name.c_str());
    dlclose(library); // it stays loaded: we opened nothing
  }
  return wanted.found != nullptr ? 1 : 0;
}

void* find(const std::string& prefix) {
  Wanted wanted{prefix + "ThreadExchangeStreamCaptureMode"};
  wanted.found = dlsym(RTLD_DEFAULT, wanted.name.c_str());
  if (wanted.found == nullptr) {
    dl_iterate_phdr(&lookInto, &wanted);
  }
  return wanted.found;
}

} // namespace

ExchangeCaptureMode captureShield(c10::DeviceType type) noexcept {
  try {
    void* found = find(c10::DeviceTypeName(type, /*lower_case=*/true));
    if (found == nullptr && type == c10::DeviceType::CUDA) {
      found = find("hip");
    }
    return reinterpret_cast<ExchangeCaptureMode>(found);
  } catch (const std::exception&) {
    return nullptr;
  }
}

} // namespace commprof
