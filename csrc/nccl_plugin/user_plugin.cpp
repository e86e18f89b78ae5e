#include "nccl_plugin/user_plugin.h"

#include <dlfcn.h>
#include <strings.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "nccl_plugin/names.h"

namespace commprof::nccl {

bool UserPlugin::wants(uint64_t type) const noexcept {
  return isTold(type, __atomic_load_n(&mask_, __ATOMIC_RELAXED), version_);
}

// ---- Loading

namespace {

std::mutex g_loading;

void sayNotPassedOn(const char* name, const std::string& reason) noexcept {
  std::fprintf(
      stderr,
      "commprof: NCCL's calls are not passed on to %s: %s\n",
      name,
      reason.c_str());
}

// Opens the library by name, in the way NCCL does.
void* openLibrary(const std::string& name) {
  const bool is_process =
      strncasecmp(name.c_str(), "STATIC_PLUGIN", name.size()) == 0;
  void* library =
      dlopen(is_process ? nullptr : name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) {
    return library;
  }
  const std::string error = dlerror();
  const bool is_file = name.find('/') != std::string::npos ||
      (name.starts_with("lib") && name.ends_with(".so"));
  if (!is_file) {
    library = dlopen(
        ("libnccl-profiler-" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw std::runtime_error(is_file ? error : error + "; " + dlerror());
  }
  return library;
}

} // namespace

// Throws std::runtime_error with the reason.
UserPlugin* UserPlugin::opened(int asked, const char* name) {
  // Never closed, because the plugin's threads may still run.
  void* library = openLibrary(name);
  // A descriptor of versions 5 to 7 begins with the fields of version 4.
  const int oldest = asked < 5 ? asked : 4;
  for (int version = asked; version >= oldest; --version) {
    const std::string symbol = "ncclProfiler_v" + std::to_string(version);
    const auto* table =
        static_cast<const AnyTable*>(dlsym(library, symbol.c_str()));
    if (table == nullptr) {
      continue;
    }
    if (table->name != nullptr && std::strcmp(table->name, kPluginName) == 0) {
      throw std::runtime_error("it is commprof's own plugin");
    }
    mapHandlePairs();
    return new UserPlugin(version, table, strdup(name));
  }
  throw std::runtime_error(
      "NCCL asks for version " + std::to_string(asked) +
      " of its interface, and the plugin has no table of versions " +
      std::to_string(oldest) + " to " + std::to_string(asked));
}

UserPlugin* UserPlugin::load(int asked) noexcept {
  static std::array<bool, kNewest + 1> tried{};
  const char* name = std::getenv("COMMPROF_NCCL_PLUGIN");
  if (name == nullptr || *name == 0 || asked < kOldest || asked > kNewest) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> lock(g_loading);
  std::atomic<UserPlugin*>& plugin = loaded_[size_t(asked)];
  if (!tried[size_t(asked)]) {
    tried[size_t(asked)] = true;
    try {
      plugin.store(opened(asked, name));
    } catch (const std::exception& error) {
      sayNotPassedOn(name, error.what());
    }
  }
  return plugin.load();
}

Result UserPlugin::initTable(const Opening& opening, void** context, int* mask)
    const {
  void* function = table_->init;
  if (version_ == 3) {
    return reinterpret_cast<InitV3>(function)(context, mask);
  }
  const Opening& o = opening;
  if (version_ == 4) {
    return reinterpret_cast<InitV4>(function)(
        context, mask, o.name, o.id, o.nodes, o.ranks, o.rank, o.logger);
  }
  return reinterpret_cast<InitV5>(function)(
      context, o.id, mask, o.name, o.nodes, o.ranks, o.rank, o.logger);
}

bool UserPlugin::init(const Opening& opening, void** context) noexcept {
  const int before = __atomic_load_n(&mask_, __ATOMIC_RELAXED);
  const Result result = initTable(opening, context, &mask_);
  static std::atomic_flag said;
  static std::atomic_flag said_failed;
  if (result != kSuccess) {
    __atomic_store_n(&mask_, before, __ATOMIC_RELAXED);
    if (!said_failed.test_and_set()) {
      sayNotPassedOn(name_, "its init() returned " + std::to_string(result));
    }
    return false;
  }
  followMask();
  const std::optional<Place> place = placeFromLauncher();
  if ((place ? place->rank : opening.rank) == 0 && !said.test_and_set()) {
    std::fprintf(
        stderr,
        "commprof: NCCL's calls are passed on to %s (version %d of the "
        "interface)\n",
        name_,
        version_);
  }
  return true;
}

} // namespace commprof::nccl
