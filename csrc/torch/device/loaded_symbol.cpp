#include "torch/device/loaded_symbol.h"

#include <dlfcn.h>
#include <link.h>
#include <algorithm>
#include <cstring>

namespace commprof {

namespace {

struct Wanted {
  const std::string& name;
  const std::initializer_list<const char*> files;
  void* found = nullptr;
};

// Searches one library: those that Python loads are not in the global scope.
int lookInto(dl_phdr_info* info, size_t, void* data) {
  auto& wanted = *static_cast<Wanted*>(data);
  const char* file = info->dlpi_name;
  const auto named = [file](const char* part) {
    return std::strstr(file, part) != nullptr;
  };
  if (file == nullptr || std::ranges::none_of(wanted.files, named)) {
    return 0;
  }
  if (void* library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD)) {
    wanted.found = dlsym(library, wanted.name.c_str());
    dlclose(library); // RTLD_NOLOAD: the library stays loaded
  }
  return wanted.found != nullptr ? 1 : 0;
}

} // namespace

void* loadedSymbol(
    const std::string& name,
    std::initializer_list<const char*> files) {
  Wanted wanted{name, files};
  wanted.found = dlsym(RTLD_DEFAULT, name.c_str());
  if (wanted.found == nullptr) {
    dl_iterate_phdr(&lookInto, &wanted);
  }
  return wanted.found;
}

} // namespace commprof
