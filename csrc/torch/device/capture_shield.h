// Calls that break no graph capture of another thread. While one captures in
// the global mode, which is CUDA's default, other threads must not even ask
// whether an event is past, unless they have said that they know what they do.
#pragma once

#include <c10/core/DeviceType.h>

namespace commprof {

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

} // namespace commprof
