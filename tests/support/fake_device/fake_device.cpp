// A device without hardware: streams and timed events on a clock that runs with
// the host's, and a c10d backend whose collectives take as long as they are
// told to. It knows the truth about every stall, and counts what a profiler
// must not do.
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <time.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace py = pybind11;

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);
constexpr double kDrift = 50e-6; // its clock is faster
constexpr double kOffsetNs = 5e15;

struct Stall {
  int64_t stream;
  double begin_ns, end_ns; // by the device
};
struct Collective {
  double ready_ns, start_ns, end_ns;
};

struct Simulation {
  std::mutex mutex;
  std::map<int64_t, double> busy_ns;
  std::vector<Stall> stalls;
  std::vector<Collective> collectives;
  std::map<std::string, int> counts;
  int64_t next_stream = 10;
  double collective_ns = 0;
  bool capturing = false;
  bool refusing = false; // to launch coalesced calls
  bool coalesced_has_future = false;
  const double begin_ns = hostNs();

  static double hostNs() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
  }
  double nowNs() const {
    return (hostNs() - begin_ns) * (1 + kDrift) + kOffsetNs;
  }
  double toHost(double device_ns) const {
    return begin_ns + (device_ns - kOffsetNs) / (1 + kDrift);
  }
  double reached(int64_t stream) {
    return std::max(busy_ns[stream], nowNs());
  }
  double run(int64_t stream, double length_ns) {
    return busy_ns[stream] = reached(stream) + length_ns;
  }
};

Simulation& sim() {
  static Simulation* s = new Simulation();
  return *s;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static thread_local int64_t current;

  static void count(const char* what) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    ++sim().counts[what];
  }
  static c10::Stream stream(int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return kDevice;
  }
  c10::Device getDevice() const override {
    return kDevice;
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  c10::Stream getStream(c10::Device) const override {
    return stream(current);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream(0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    count("pool_streams");
    return getNewStream(kDevice, 0);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    return stream(sim().next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current, next.id()));
  }
  bool isStreamCapturing(const c10::Stream&) const override {
    return sim().capturing;
  }

  void record(
      void** event,
      const c10::Stream& on,
      const c10::DeviceIndex,
      const c10::EventFlag flag) const override {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    if (*event == nullptr) {
      *event = new double;
      sim().counts["timed_events"] += flag == c10::EventFlag::BACKEND_DEFAULT;
    }
    sim().counts["captured"] += sim().capturing;
    *static_cast<double*>(*event) = sim().reached(on.id());
  }
  void block(void* event, const c10::Stream& on) const override {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    const double begin = sim().reached(on.id());
    const double end = std::max(begin, *static_cast<double*>(event));
    sim().busy_ns[on.id()] = end;
    sim().stalls.push_back({on.id(), begin, end});
  }
  bool queryEvent(void* event) const override {
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
};
thread_local int64_t Guard::current = 0;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

class DeviceWork final : public c10d::Work {
 public:
  explicit DeviceWork(c10::intrusive_ptr<c10::ivalue::Future> future)
      : future_(std::move(future)), end_(kType) {
    end_.record(c10::impl::VirtualGuardImpl(kType).getStream(kDevice));
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    end_.block(c10::impl::VirtualGuardImpl(kType).getStream(kDevice));
  }
  void blockCurrentStream() override {
    synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::Event end_;
};

// As ProcessGroupNCCL: its own stream waits for the caller's, runs the
// collective, and the future holds an event behind it. With async_op=False it
// runs in the caller's stream.
class DeviceBackend final : public c10d::Backend {
 public:
  using Backend::Backend;

  const std::string getBackendName() const override {
    return "fakedevice";
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    return run(tensors, options.asyncOp ? kStream : Guard::current);
  }

  // As one, and only the one has a Work; that of NCCL has no future.
  void startCoalescing() override {
    coalesced_ = true;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalesced_ = false;
    if (sim().refusing) {
      throw std::runtime_error("nothing was launched");
    }
    auto tensors = std::exchange(together_, {});
    return run(tensors, kStream, sim().coalesced_has_future);
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
  static constexpr int64_t kStream = 1;

  c10::intrusive_ptr<c10d::Work> message(std::vector<at::Tensor>& tensors) {
    if (!coalesced_) {
      return run(tensors, kStream);
    }
    together_.insert(together_.end(), tensors.begin(), tensors.end());
    return nullptr;
  }

  c10::intrusive_ptr<c10d::Work> run(
      std::vector<at::Tensor>& tensors,
      int64_t stream,
      bool has_future = true) {
    {
      const std::lock_guard<std::mutex> lock(sim().mutex);
      const double ready = sim().reached(Guard::current);
      const double start = std::max(ready, sim().reached(stream));
      sim().busy_ns[stream] = start;
      sim().run(stream, sim().collective_ns);
      sim().collectives.push_back({ready, start, sim().busy_ns[stream]});
    }
    const c10::StreamGuard guard(Guard::stream(stream));
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{kDevice});
    future->markCompleted(c10::IValue(tensors));
    if (!has_future) {
      future = nullptr;
    }
    return c10::make_intrusive<DeviceWork>(std::move(future));
  }

  bool coalesced_ = false;
  std::vector<at::Tensor> together_;
};

at::Tensor tensor(int64_t count) {
  static std::vector<float> memory(1 << 20);
  return at::for_blob(memory.data(), {count})
      .target_device(kDevice)
      .options(at::TensorOptions(at::kFloat).device(kDevice))
      .make_tensor();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def(
      "backend",
      [](const c10::intrusive_ptr<c10d::Store>&,
         int rank,
         int size,
         const py::object&) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<DeviceBackend>(rank, size);
      });
  m.def("tensor", &tensor);
  m.def("compute", [](double length_ns) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    sim().run(Guard::current, length_ns);
  });
  m.def("collectives_take", [](double length_ns) {
    sim().collective_ns = length_ns;
  });
  m.def("use_stream", [](int64_t stream) { Guard::current = stream; });
  m.def("current_stream", [] { return Guard::current; });
  // Where an event on it would be passed; and the stream waits for such a one.
  m.def("reached", [](int64_t stream) {
    const std::lock_guard<std::mutex> lock(sim().mutex);
    return sim().reached(stream);
  });
  m.def("wait_until", [](int64_t stream, double event_ns) {
    Guard().block(&event_ns, Guard::stream(stream));
  });
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
