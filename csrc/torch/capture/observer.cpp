#include "torch/capture/observer.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <mutex>

#include "base/clock.h"
#include "core/blocked_calls.h"
#include "core/current_op.h"
#include "core/recorder.h"
#include "torch/capture/completion.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/capture/ddp/observed_buckets.h"
#include "torch/capture/future_waits.h"
#include "torch/capture/op_plan.h"
#include "torch/capture/process_groups.h"
#include "torch/capture/stacks.h"
#include "torch/capture/tensor_bytes.h"
#include "torch/device/device_events.h"

namespace commprof {

namespace {

// Dispatch keys to observe. Keys without registered kernels are skipped.
constexpr c10::DispatchKey kKeys[] = {
    c10::DispatchKey::CPU,
    c10::DispatchKey::CUDA,
    c10::DispatchKey::XPU,
    c10::DispatchKey::HPU,
    c10::DispatchKey::PrivateUse1,
    c10::DispatchKey::SparseCPU,
    c10::DispatchKey::SparseCUDA};

// Faster than IValue::toCustomClass: skips the type check and the reference
// counting. The schema guarantees the type, and the IValue keeps the object
// alive.
template <class T>
T& customClass(const c10::IValue& value) {
  return static_cast<T&>(*value.toObjectRef().getSlot(0).toCapsule());
}

struct Call {
  Record record;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

void addBytes(const at::Tensor& tensor, uint64_t& bytes, Call& call) {
  if (!tensor.defined()) {
    return;
  }
  bytes += tensorBytes(tensor);
  if (tensor.is_sparse()) {
    call.record.flags |= kSparse;
  }
  call.record.dtype = uint8_t(tensor.scalar_type());
  if (!tensor.is_cpu()) {
    call.device = tensor.device();
  }
}

void addBytes(const c10::IValue& value, uint64_t& bytes, Call& call) {
  if (value.isTensor()) {
    addBytes(value.toTensor(), bytes, call);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      addBytes(element, bytes, call);
    }
  }
}

class Interposer final : public c10::OperatorKernel {
 public:
  Interposer(
      OpPlan plan,
      c10::DispatchKey key,
      c10::SafeKernelFunction original)
      : plan_(std::move(plan)),
        device_type_(c10::dispatchKeyToDeviceType(key)),
        original_(std::move(original)) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    const size_t base = stack->size() - plan_.arguments;
    GroupInfo& info = groupInfo(
        customClass<c10d::ProcessGroup>((*stack)[base + plan_.group]),
        device_type_);
    // Calls are counted even while capture is off, because ranks must agree on
    // the numbers.
    const uint32_t seq = isPointToPoint(plan_.op)
        ? info.nextMessage(plan_.op, peer(*stack, base))
        : info.next_seq.fetch_add(1, std::memory_order_relaxed);
    Recorder& recorder = Recorder::instance();
    if (!recorder.enabled()) {
      original_.callBoxed(op, keys, stack);
      return;
    }
    const Call call = describe(*stack, base);
    Record issue = call.record;
    issue.op_id = recorder.nextOpId();
    issue.group = info.id;
    issue.seq = seq;
    issue.value = uint64_t(bracketFinalize() + 1);
    BlockedCall call_time(c10d::debug_level() == c10d::DebugLevel::Detail);
    issue.timestamp_ns = nowNs();
    recorder.push(issue);
    lastIssued() = {issue.op_id, issue.op};
    if (stacksEnabled()) {
      recordStack(issue);
    }
    const c10::TensorImpl* gradients = gradientsOf(issue, *stack, base);
    const InsideOp inside(issue.op_id);
    if (device_type_ == c10::DeviceType::CPU) {
      callOnHost(issue, op, keys, stack);
    } else {
      callOnDevice(call.device, issue, op, keys, stack);
    }
    if (plan_.returns_work) {
      recordBlocked(issue, call_time);
    }
    if (gradients != nullptr) {
      noteAllReduce(issue, gradients);
    }
  }

 private:
  const c10::TensorImpl* gradientsOf(
      const Record& issue,
      const torch::jit::Stack& stack,
      size_t base) const {
    if (issue.op != Op::kAllReduce || issue.value == 0 || !observesBuckets()) {
      return nullptr;
    }
    const c10::IValue& value = stack[base + plan_.buffers[0].argument];
    return value.isTensorList() && value.toListRef().size() == 1
        ? value.toListRef()[0].toTensor().unsafeGetTensorImpl()
        : nullptr;
  }

  void callOnHost(
      const Record& issue,
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    try {
      original_.callBoxed(op, keys, stack);
    } catch (...) {
      recordEnd(issue.op_id, issue.op, true);
      throw;
    }
    if (plan_.returns_work) {
      watch(stack->back(), issue, {});
    } else {
      recordBlockingCall(issue); // e.g. monitored_barrier
    }
  }

  void callOnDevice(
      c10::Device device,
      const Record& issue,
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    const size_t base = stack->size() - plan_.arguments;
    const bool in_callers =
        plan_.async_op >= 0 && !(*stack)[base + plan_.async_op].toBool();
    DeviceIssue on_device(
        device.is_cpu() ? currentDevice(device_type_) : device,
        issue,
        in_callers,
        !coalescing());
    try {
      original_.callBoxed(op, keys, stack);
    } catch (...) {
      recordEnd(issue.op_id, issue.op, true);
      throw;
    }
    const DeviceOp launched = on_device.launched();
    if (plan_.returns_work) {
      watch(stack->back(), issue, launched);
    } else {
      recordBlockingCall(issue);
    }
  }

  Call describe(const torch::jit::Stack& stack, size_t base) const {
    Call call;
    Record& record = call.record;
    record.kind = Kind::kIssue;
    record.op = plan_.op;
    record.thread = Recorder::threadId();
    for (const OpPlan::Buffers& buffers : plan_.buffers) {
      uint64_t bytes = 0;
      addBytes(stack[base + buffers.argument], bytes, call);
      record.bytes_in += buffers.is_input ? bytes : 0;
      record.bytes_out += buffers.is_output ? bytes : 0;
    }
    if (plan_.placed_by >= 0) {
      const at::Tensor& tensor = stack[base + plan_.placed_by].toTensor();
      call.device = tensor.defined() ? tensor.device() : call.device;
    }
    if (plan_.reduce_op >= 0) {
      record.reduce_op = uint8_t(
          customClass<c10d::ReduceOp>(stack[base + plan_.reduce_op]).op_);
    }
    record.aux = uint32_t(peer(stack, base));
    record.flags |=
        device_type_ == c10::DeviceType::CPU ? 0 : uint32_t{kDeviceAsync};
    return call;
  }

  int64_t peer(const torch::jit::Stack& stack, size_t base) const {
    return plan_.peer < 0 ? 0 : stack[base + plan_.peer].toInt();
  }

  static void recordBlocked(const Record& issue, BlockedCall& call) {
    const uint64_t blocked_ns = call.blockedNs(issue.timestamp_ns);
    if (blocked_ns == 0) {
      return;
    }
    Record wait = waitOf(issue, issue.timestamp_ns + blocked_ns);
    wait.flags = kInIssue;
    Recorder::instance().push(wait);
    ++ThreadWaits::here().ended;
  }

  static Record waitOf(const Record& issue, uint64_t end_ns) {
    Record wait;
    wait.kind = Kind::kWait;
    wait.op = issue.op;
    wait.op_id = issue.op_id;
    wait.thread = issue.thread;
    wait.timestamp_ns = issue.timestamp_ns;
    wait.value = end_ns;
    return wait;
  }

  static void recordBlockingCall(const Record& issue) {
    recordEnd(issue.op_id, issue.op, false);
    Recorder::instance().push(waitOf(issue, nowNs()));
    ++ThreadWaits::here().ended;
  }

  const OpPlan plan_;
  const c10::DeviceType device_type_;
  const c10::SafeKernelFunction original_;
};

struct Installed {
  std::mutex mutex;
  // Not destroyed at exit, because gloo's threads may be using the kernels.
  std::vector<std::unique_ptr<torch::Library>> libraries;
  std::vector<std::string> operators;
};

Installed& installed() {
  static Installed* i = new Installed();
  return *i;
}

// The dispatcher warns about every kernel that replaces another.
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void interpose(c10::DispatchKey key, Installed& state) {
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(key)) {
      continue;
    }
    auto plan = OpPlan::make(op->schema());
    if (!plan) {
      continue;
    }
    library->impl(
        name.name.substr(6).c_str(),
        torch::CppFunction::makeFromBoxedFunctor(
            std::make_unique<Interposer>(
                std::move(*plan),
                key,
                op->getComputedKernelForDispatchKey(key))));
    if (key == c10::DispatchKey::CPU) {
      state.operators.push_back(name.name);
    }
  }
  state.libraries.push_back(std::move(library));
}

} // namespace

std::vector<std::string> installObserver() {
  Installed& state = installed();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.libraries.empty()) {
    static SilentWarnings silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    for (const c10::DispatchKey key : kKeys) {
      interpose(key, state);
    }
  }
  return state.operators;
}

void uninstallObserver() {
  Installed& state = installed();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.libraries.clear();
  state.operators.clear();
}

} // namespace commprof
