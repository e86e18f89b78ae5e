#include "torch/device/loaded_symbol.h"

#include <dlfcn.h>
#include <link.h>
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

namespace commprof {

namespace {

struct Libraries {
  const std::initializer_list<const char*> parts;
  std::vector<std::string> paths;
};

// Must not call dlopen(), which could deadlock: the C library holds a lock
// here, and another thread's dlopen() may hold a second lock while it waits for
// the first.
int keepPath(dl_phdr_info* info, size_t, void* data) {
  auto& libraries = *static_cast<Libraries*>(data);
  const char* path = info->dlpi_name;
  const auto named = [path](const char* part) {
    return std::strstr(path, part) != nullptr;
  };
  if (path != nullptr && std::ranges::any_of(libraries.parts, named)) {
    try {
      libraries.paths.emplace_back(path);
    } catch (const std::bad_alloc&) {
      return 1; // no memory: the other libraries count as not loaded
    }
  }
  return 0;
}

void* symbolIn(const std::string& path, const std::string& name) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    return nullptr;
  }
  void* found = dlsym(library, name.c_str());
  dlclose(library); // RTLD_NOLOAD: the library stays loaded
  return found;
}

} // namespace

void* loadedSymbol(
    const std::string& name,
    std::initializer_list<const char*> files) {
  void* found = dlsym(RTLD_DEFAULT, name.c_str());
  if (found == nullptr) { // the global scope lacks libraries that Python loaded
    Libraries libraries{files, {}};
    dl_iterate_phdr(&keepPath, &libraries);
    for (const std::string& path : libraries.paths) {
      found = found == nullptr ? symbolIn(path, name) : found;
    }
  }
  return found;
}

} // namespace commprof
