// A thread that looks at devices now and then, so that those which train need
// not: each look is a call of the device's runtime.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "torch/device/capture_shield.h"

namespace commprof {

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
