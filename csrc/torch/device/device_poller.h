// A thread that polls devices, so that training threads need not call the
// device's runtime.
#pragma once

#include <c10/core/DeviceType.h>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace commprof {

// While a thread captures a graph in CUDA's default mode, a query of an event
// by another thread breaks the capture. A thread is shielded if its own capture
// mode is relaxed: its queries are then harmless.

// The runtime's function that exchanges the calling thread's capture mode, such
// as cudaThreadExchangeStreamCaptureMode. captureShield() returns null if no
// loaded library has such a function for the device type.
using ExchangeCaptureMode = int (*)(int* mode);
ExchangeCaptureMode captureShield(c10::DeviceType type) noexcept;

// Shields the calling thread while this object exists.
class Shielded {
 public:
  explicit Shielded(ExchangeCaptureMode exchange) noexcept
      : exchange_(exchange) {
    if (exchange_ != nullptr) {
      exchange_(&mode_);
    }
  }
  ~Shielded() {
    if (exchange_ != nullptr) {
      exchange_(&mode_);
    }
  }
  Shielded(const Shielded&) = delete;
  Shielded& operator=(const Shielded&) = delete;

 private:
  // Value of cudaStreamCaptureModeRelaxed, and of HIP's equivalent.
  static constexpr int kRelaxed = 2;

  const ExchangeCaptureMode exchange_;
  int mode_ = kRelaxed;
};

class DevicePoller {
 public:
  // Calls `poll` every kEveryMs on a separate, shielded thread from now on.
  // Throws std::system_error.
  DevicePoller(ExchangeCaptureMode shield, std::function<void()> poll);
  ~DevicePoller();
  DevicePoller(const DevicePoller&) = delete;
  DevicePoller& operator=(const DevicePoller&) = delete;

 private:
  static constexpr int kEveryMs = 20;
  void run();

  const ExchangeCaptureMode shield_;
  const std::function<void()> poll_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace commprof
