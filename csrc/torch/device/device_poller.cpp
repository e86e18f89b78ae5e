#include "torch/device/device_poller.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

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

DevicePoller::DevicePoller(
    ExchangeCaptureMode shield,
    std::function<void()> look)
    : shield_(shield), look_(std::move(look)) {
  sigset_t all; // signals belong to the user's threads
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

DevicePoller::~DevicePoller() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DevicePoller::run() {
  pthread_setname_np(pthread_self(), "commprof-device");
  const Shielded shielded(shield_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::milliseconds(kEveryMs));
    if (!stopping_) {
      lock.unlock();
      look_();
      lock.lock();
    }
  }
}

} // namespace commprof
