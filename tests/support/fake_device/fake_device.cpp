// Simulates a device: streams, timed events, and a c10d backend whose
// collectives take a given time. Like CUDA, the device has pools of 32 streams,
// 8 hardware queues, a current device, and captures that other threads can
// break.
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <time.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

namespace py = pybind11;

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define HAS_COMPLETION_HOOKS
#endif

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr double kDrift = 50e-6;
constexpr double kOffsetNs = 5e15;
// c10 has 32 CUDA streams for each priority, and hands the streams out in turn.
constexpr int64_t kPoolStreams = 32;
constexpr int64_t kHardwareQueues = 8;
constexpr int64_t kFirstPoolStream = 34;

// Stalls and collectives have times of the device's clock.
struct Stall {
  int64_t stream;
  double begin_ns, end_ns;
};
struct Collective {
  double ready_ns, start_ns, end_ns;
};
// The values are those of CUDA's cudaStreamCaptureMode.
enum CaptureMode : int { kGlobal, kThreadLocal, kRelaxed };

// On device 0 a stream's key is its id.
int64_t keyOf(const c10::Stream& stream) {
  return int64_t(stream.device_index()) << 32 | stream.id();
}

struct Simulation {
  std::mutex mutex;
  std::map<int64_t, double> busy_ns;
  // Until this time, a stream's wait blocks all later work in its hardware
  // queue, also the work of other streams.
  std::map<int64_t, double> blocked_ns;
  std::vector<Stall> stalls;
  std::vector<Collective> collectives;
  std::vector<double> heard_ns;
  std::map<std::string, int> counts;
  std::map<int, int64_t> taken;
  std::map<int, int> contexts;
  double collective_ns = 0;
  bool capturing = false;
  bool refusing = false;
  bool coalesced_has_future = false;
  bool tells_stream = true;
  int64_t backends = 0;
  bool capturing_globally = false;
  pthread_t capturing_thread{};
  int invalidated = 0;
  const double begin_ns = hostNs();

  static double hostNs() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
  }
  double nowNs() const {
    return toDevice(hostNs());
  }
  double toDevice(double host_ns) const {
    return (host_ns - begin_ns) * (1 + kDrift) + kOffsetNs;
  }
  double toHost(double device_ns) const {
    return begin_ns + (device_ns - kOffsetNs) / (1 + kDrift);
  }
  static int64_t queueOf(int64_t key) {
    return (key >> 32) * kHardwareQueues + key % kHardwareQueues;
  }
  double reached(int64_t key) {
    return std::max({busy_ns[key], blocked_ns[queueOf(key)], nowNs()});
  }
  double run(int64_t key, double length_ns) {
    return busy_ns[key] = reached(key) + length_ns;
  }
  void wait(int64_t key, double until_ns) {
    const double begin = reached(key);
    const double end = std::max(begin, until_ns);
    busy_ns[key] = end;
    if (end > begin) {
      double& blocked = blocked_ns[queueOf(key)];
      blocked = std::max(blocked, end);
    }
    stalls.push_back({key, begin, end});
  }
};

Simulation& sim() {
  static Simulation* s = new Simulation();
  return *s;
}

struct Guard : c10::impl::DeviceGuardImplInterface {
  static thread_local std::array<int64_t, kDevices> current;
  static thread_local c10::DeviceIndex device;
  static thread_local std::map<std::string, int> calls;
  static thread_local int capture_mode;

  static void count(const char* what) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    ++sim().counts[what];
  }
  // As with CUDA, a call makes a context on the current device.
  static void called(const char* what) {
    ++calls[what];
    const std::lock_guard<std::mutex> lock(sim().mutex);
    ++sim().contexts[device];
  }
  // CUDA forbids some calls while another thread captures in global mode.
  static void calledUnsafe(const char* what) {
    called(what);
    const std::lock_guard<std::mutex> lock(sim().mutex);
    if (sim().capturing_globally && capture_mode != kRelaxed &&
        pthread_equal(sim().capturing_thread, pthread_self()) == 0) {
      ++sim().invalidated;
      TORCH_CHECK(false, "operation not permitted when stream is capturing");
    }
  }
  static c10::Stream stream(int64_t id, c10::DeviceIndex on = 0) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, on), id);
  }

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device next) const override {
    ++calls["get_device"];
    const c10::Device before(kType, device);
    if (next.index() != device) {
      setDevice(next);
    }
    return before;
  }
  c10::Device getDevice() const override {
    ++calls["get_device"];
    return c10::Device(kType, device);
  }
  void setDevice(c10::Device next) const override {
    device = next.index();
    called("set_device"); // since CUDA 12, cudaSetDevice makes the context
  }
  // As in c10's guard for CUDA, this function makes no context.
  void uncheckedSetDevice(c10::Device next) const noexcept override {
    if (next.index() != device) {
      ++calls["set_device"];
      device = next.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  c10::Stream getStream(c10::Device on) const override {
    const c10::DeviceIndex index = on.has_index() ? on.index() : device;
    return stream(current[size_t(index)], index);
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return stream(0, on.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    count("pool_streams");
    return getNewStream(on, 0);
  }
  c10::Stream getNewStream(c10::Device on, int priority) const override {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    ++sim().counts["new_streams"];
    const int64_t pool = std::min(std::abs(priority), 3);
    const int64_t place = sim().taken[int(pool)]++ % kPoolStreams;
    return stream(kFirstPoolStream + pool * kPoolStreams + place, on.index());
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    int64_t& place = current[size_t(next.device_index())];
    return stream(std::exchange(place, next.id()), next.device_index());
  }
  void record(
      void** event,
      const c10::Stream& on,
      const c10::DeviceIndex,
      const c10::EventFlag flag) const override {
    called("event_record");
    if (*event == nullptr) {
      called("event_create");
    }
    const std::lock_guard<std::mutex> lock(sim().mutex);
    if (*event == nullptr) {
      *event = new double;
      sim().counts["timed_events"] += flag == c10::EventFlag::BACKEND_DEFAULT;
    }
    sim().counts["captured"] += sim().capturing;
    *static_cast<double*>(*event) = sim().reached(keyOf(on));
  }
  void block(void* event, const c10::Stream& on) const override {
    called("stream_wait");
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().wait(keyOf(on), *static_cast<double*>(event));
  }
  bool queryEvent(void* event) const override {
    calledUnsafe("event_query");
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().counts["captured"] += sim().capturing;
    return sim().nowNs() >= *static_cast<double*>(event);
  }
  void destroyEvent(void* event, const c10::DeviceIndex)
      const noexcept override {
    delete static_cast<double*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex)
      const override {
    calledUnsafe("event_elapsed");
    return (*static_cast<double*>(to) - *static_cast<double*>(from)) * 1e-6;
  }
  void synchronizeEvent(void*) const override {
    count("synchronized");
  }
  void synchronizeStream(const c10::Stream&) const override {
    count("synchronized");
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    count("synchronized");
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&)
      const override {
    count("recorded_tensors");
  }

  static constexpr int64_t kCapturedStream = 9;
};
thread_local std::array<int64_t, kDevices> Guard::current = {};
thread_local c10::DeviceIndex Guard::device = 0;
thread_local std::map<std::string, int> Guard::calls;
thread_local int Guard::capture_mode = kGlobal;
// CUDA's guard reports captures; the guards of other vendors often do not.
struct TellingGuard final : Guard {
  bool isStreamCapturing(const c10::Stream& on) const override {
    called("capture_status");
    return sim().capturing ||
        (sim().capturing_globally && keyOf(on) == kCapturedStream);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, TellingGuard)

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(
      int rank,
      c10d::OpType type,
      c10::Device device,
      c10::intrusive_ptr<c10::ivalue::Future> future)
      : Work(rank, type, sim().tells_stream ? "fakedevice" : nullptr),
        device_(device),
        future_(std::move(future)),
        end_(kType) {}

  void launched(const std::vector<at::Tensor>& tensors) {
    end_.record(c10::impl::VirtualGuardImpl(kType).getStream(device_));
    if (future_ == nullptr) {
      return;
    }
    if (recordFunctionEndCallback_) {
      future_->addCallback(
          [this](c10::ivalue::Future&) { recordFunctionEndCallback_(); },
          /*uses_future=*/false);
    }
    future_->markCompleted(c10::IValue(tensors));
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    const c10::OptionalDeviceGuard guard(device_);
    end_.block(c10::impl::VirtualGuardImpl(kType).getStream(device_));
  }
  void blockCurrentStream() override {
    synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const c10::Device device_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::Event end_;
};

at::Tensor tensor(int64_t count, c10::DeviceIndex index);

// As in ProcessGroupNCCL, a collective runs in the backend's stream, or with
// async_op=False in the caller's stream. With several ranks, a collective
// begins when the devices of all ranks have reached the collective.
class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : Backend(rank, size), store_(std::move(store)) {
    const bool is_first = sim().backends++ == 0;
    stream_ =
        is_first ? 1 : Guard().getNewStream(c10::Device(kType, 0), 0).id();
  }

  const std::string getBackendName() const override {
    return "fakedevice";
  }

#ifdef HAS_COMPLETION_HOOKS
  bool supportsCompletionHooks() const override {
    return true;
  }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    hooks_[id] = std::move(hook);
  }
  void unregisterCompletionHook(int64_t id) override {
    hooks_.erase(id);
  }
#endif

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    return run(tensors, !options.asyncOp);
  }

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& options) override {
    std::vector<at::Tensor> tensors{
        tensor(1, c10::DeviceIndex(options.device_ids.at(0)))};
    return run(tensors, false);
  }

  // Coalesced calls have one Work together. NCCL's Work has no future then.
  void startCoalescing() override {
    coalesced_ = true;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalesced_ = false;
    if (sim().refusing) {
      throw std::runtime_error("nothing was launched");
    }
    auto tensors = std::exchange(together_, {});
    return run(tensors, false, sim().coalesced_has_future);
  }
  c10::intrusive_ptr<c10d::Work> send(
      std::vector<at::Tensor>& tensors,
      int,
      int) override {
    return message(tensors);
  }
  c10::intrusive_ptr<c10d::Work> recv(
      std::vector<at::Tensor>& tensors,
      int,
      int) override {
    return message(tensors);
  }

 private:
  c10::intrusive_ptr<c10d::Work> message(std::vector<at::Tensor>& tensors) {
    if (!coalesced_) {
      return run(tensors, false);
    }
    together_.insert(together_.end(), tensors.begin(), tensors.end());
    return nullptr;
  }

  c10::intrusive_ptr<c10d::Work> run(
      std::vector<at::Tensor>& tensors,
      bool in_stream,
      bool has_future = true) {
    tellCompletions();
    const c10::Device device = tensors.at(0).device();
    const c10::OptionalDeviceGuard device_guard(device);
    const c10::Stream caller = Guard().getStream(device);
    const c10::Stream stream =
        in_stream ? caller : Guard::stream(stream_, device.index());
    launch(keyOf(caller), keyOf(stream));
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{device});
    if (!has_future) {
      future = nullptr;
    }
    auto work = c10::make_intrusive<DeviceWork>(
        getRank(), c10d::OpType::ALLREDUCE, device, std::move(future));
    const c10::StreamGuard guard(stream);
    work->launched(tensors);
    return work;
  }

  // NCCL's backend looks for completed collectives at each issue, and in
  // addition once a second.
  void tellCompletions() {
#ifdef HAS_COMPLETION_HOOKS
    const double now_ns = sim().nowNs();
    std::erase_if(running_, [&](const Collective& one) {
      if (one.end_ns > now_ns) {
        return false;
      }
      ++told_;
      for (const auto& [id, hook] : hooks_) {
        hook({told_, float((one.end_ns - one.start_ns) / 1e6)});
      }
      return true;
    });
#endif
  }

  void launch(int64_t caller, int64_t stream) {
    double ready = 0;
    double start = 0;
    {
      const std::lock_guard<std::mutex> lock(sim().mutex);
      ready = sim().reached(caller);
      start = std::max(ready, sim().reached(stream));
    }
    start = sim().toDevice(lastHostNs(sim().toHost(start)));
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().busy_ns[stream] = std::max(sim().busy_ns[stream], start);
    const double end = sim().run(stream, sim().collective_ns);
    sim().collectives.push_back({ready, end - sim().collective_ns, end});
    running_.push_back(sim().collectives.back());
  }

  // All ranks run on one host, so they share its clock.
  double lastHostNs(double own_ns) {
    const std::string key = "collective" + std::to_string(launched_++) + ":";
    if (getSize() > 1) {
      store_->set(key + std::to_string(getRank()), std::to_string(own_ns));
    }
    for (int rank = 0; rank < getSize(); ++rank) {
      if (rank != getRank()) {
        own_ns = std::max(
            own_ns, std::stod(store_->get_to_str(key + std::to_string(rank))));
      }
    }
    return own_ns;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  int64_t stream_;
  int64_t launched_ = 0;
  bool coalesced_ = false;
  std::vector<at::Tensor> together_;
  std::vector<Collective> running_;
#ifdef HAS_COMPLETION_HOOKS
  std::map<int64_t, c10d::CompletionHook> hooks_;
  uint64_t told_ = 0;
#endif
};

at::Tensor tensor(int64_t count, c10::DeviceIndex index) {
  static std::vector<float> memory(1 << 20);
  const c10::Device device(kType, index);
  return at::for_blob(memory.data(), {count})
      .target_device(device)
      .options(at::TensorOptions(at::kFloat).device(device))
      .make_tensor();
}

} // namespace

// Does what cudaThreadExchangeStreamCaptureMode does. Other libraries find the
// function if this module is loaded globally.
extern "C" int privateuseoneThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, Guard::capture_mode);
  return 0;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def(
      "backend",
      [](const c10::intrusive_ptr<c10d::Store>& store,
         int rank,
         int size,
         const py::object&) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<DeviceBackend>(store, rank, size);
      });
  m.def("tensor", &tensor, py::arg("count"), py::arg("device") = 0);
#ifdef HAS_COMPLETION_HOOKS
  m.def("hear_completions", [](c10d::ProcessGroup& group) {
    group.registerCompletionHook(-1, [](const c10d::CompletionHookArgs&) {
      sim().heard_ns.push_back(Simulation::hostNs());
    });
  });
#endif
  m.def("heard", [] { return sim().heard_ns; });
  m.def("compute", [](double length_ns) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().run(Guard::current[0], length_ns);
  });
  m.def("collectives_take", [](double length_ns) {
    sim().collective_ns = length_ns;
  });
  m.def("use_stream", [](int64_t stream) { Guard::current[0] = stream; });
  m.def("current_stream", [] { return Guard::current[0]; });
  m.def("reached", [](int64_t stream) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    return sim().reached(stream);
  });
  m.def("wait_until", [](int64_t stream, double event_ns) {
    Guard().block(&event_ns, Guard::stream(stream));
  });
  m.def("calls", [] { return Guard::calls; });
  m.def("contexts", [] { return sim().contexts; });
  m.def("tells_stream", [](bool on) { sim().tells_stream = on; });
  m.def("capture_globally", [](bool on) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().capturing_globally = on;
    sim().capturing_thread = pthread_self();
  });
  m.def("tells_no_capture", [] {
    c10::impl::registerDeviceGuard(kType, new Guard());
  });
  m.def("invalidated", [] { return sim().invalidated; });
  m.def(
      "coalesced_has_future", [](bool on) { sim().coalesced_has_future = on; });
  m.def("refuse", [](bool on) { sim().refusing = on; });
  m.def("capture", [](bool on) { sim().capturing = on; });
  m.def("to_host", [](double device_ns) { return sim().toHost(device_ns); });
  m.def("now", [] { return sim().nowNs(); });
  m.def("counts", [] { return sim().counts; });
  m.def("stalls", [](int64_t stream) {
    std::vector<std::pair<double, double>> found;
    for (const Stall& stall : sim().stalls) {
      if (stall.stream == stream) {
        found.emplace_back(stall.begin_ns, stall.end_ns);
      }
    }
    return found;
  });
  m.def("collectives", [] {
    std::vector<std::tuple<double, double, double>> found;
    for (const Collective& one : sim().collectives) {
      found.emplace_back(one.ready_ns, one.start_ns, one.end_ns);
    }
    return found;
  });
}
