// A thread that looks at devices now and then, so that those which train need
// not: each look is a call of the device's runtime.
#pragma once

#include <c10/core/DeviceType.h>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace commprof {

// Calls that break no graph capture of another thread. While one captures in
// the global mode, which is CUDA's default, other threads must not even ask
// whether an event is past, unless they have said that they know what they do.

// The runtime's function that exchanges the calling thread's capture mode, as
// cudaThreadExchangeStreamCaptureMode does; null where no library in this
// process has one for the device. Its name begins with torch's name for the
// device type, or with "hip" for what torch calls CUDA there.
using ExchangeCaptureMode = int (*)(int* mode);
ExchangeCaptureMode captureShield(c10::DeviceType type) noexcept;

// The calling thread's calls are harmless while this lives.
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
  static constexpr int kRelaxed = 2; // cudaStreamCaptureModeRelaxed, also HIP's

  const ExchangeCaptureMode exchange_;
  int mode_ = kRelaxed;
};

class DevicePoller {
 public:
  // From now on `look` is called every kEveryMs from a thread of its own, which
  // is shielded. Throws std::system_error.
  DevicePoller(ExchangeCaptureMode shield, std::function<void()> look);
  ~DevicePoller();
  DevicePoller(const DevicePoller&) = delete;
  DevicePoller& operator=(const DevicePoller&) = delete;

 private:
  static constexpr int kEveryMs = 20;
  void run();

  const ExchangeCaptureMode shield_;
  const std::function<void()> look_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace commprof
