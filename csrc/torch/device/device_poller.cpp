#include "torch/device/device_poller.h"

#include <pthread.h>
#include <signal.h>
#include <chrono>
#include <string>
#include <utility>

#include "torch/device/loaded_symbol.h"

namespace commprof {

namespace {

void* find(const std::string& prefix) {
  return loadedSymbol(
      prefix + "ThreadExchangeStreamCaptureMode", {"libcudart", "libamdhip64"});
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
    std::function<void()> poll)
    : shield_(shield), poll_(std::move(poll)) {
  sigset_t all; // the user's threads handle signals
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
      poll_();
      lock.lock();
    }
  }
}

} // namespace commprof
