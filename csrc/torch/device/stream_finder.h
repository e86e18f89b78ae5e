// Finds the stream on which a backend runs an operation.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace commprof {

// While this object lives, the calling thread appears to be profiled. torch's
// backends for NCCL and XCCL, and backends modelled on them, then report each
// operation to the profiler while the operation's stream is current.
class StreamFinder {
 public:
  explicit StreamFinder(c10::Device device) noexcept {
    sought() = {true, device, std::nullopt};
    try {
      handle_ = at::addThreadLocalCallback(
          at::RecordFunctionCallback(&began, &ended)
              .scopes({at::RecordScope::USER_SCOPE}));
    } catch (const std::exception&) { // no stream is found
    }
  }
  ~StreamFinder() {
    if (handle_ != at::INVALID_CALLBACK_HANDLE) {
      at::removeCallback(handle_);
    }
    sought().active = false;
  }
  StreamFinder(const StreamFinder&) = delete;
  StreamFinder& operator=(const StreamFinder&) = delete;

  std::optional<int64_t> found() const noexcept {
    return sought().stream;
  }

 private:
  struct Sought {
    bool active = false;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    std::optional<int64_t> stream;
  };
  static Sought& sought() noexcept {
    static thread_local Sought s;
    return s;
  }
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction&) {
    return nullptr;
  }
  // Only asynchronous scopes count: those of c10d Works. When other scopes end,
  // any stream may be current.
  static void ended(const at::RecordFunction& what, at::ObserverContext*) {
    Sought& s = sought();
    if (s.active && what.isAsync()) {
      s.stream =
          c10::impl::VirtualGuardImpl(s.device.type()).getStream(s.device).id();
    }
  }

  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

} // namespace commprof
