// A thread that polls devices. Each poll calls the device's runtime, and this
// thread spares training threads these calls.
#pragma once

#include <c10/core/DeviceType.h>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace commprof {

// A poll must not break graph captures of other threads. While a thread
// captures in the global mode, which is CUDA's default, other threads must not
// even query an event, unless they have set their own capture mode to relaxed.
// So a thread that polls sets this mode: it is shielded.

// The runtime's function that exchanges the calling thread's capture mode, such
// as cudaThreadExchangeStreamCaptureMode; null if no library in this process
// has one for the device. Its name begins with torch's name of the device type,
// or with "hip" if torch's CUDA is HIP.
using ExchangeCaptureMode = int (*)(int* mode);
ExchangeCaptureMode captureShield(c10::DeviceType type) noexcept;

// Makes the calling thread's calls harmless to captures during its lifetime.
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
