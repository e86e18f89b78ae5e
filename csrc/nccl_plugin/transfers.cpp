#include "nccl_plugin/transfers.h"

#include <array>
#include <atomic>

#include "base/clock.h"
#include "core/recorder.h"

namespace commprof::nccl {

namespace {

// What a step waits for. If steps wait for different things, the one listed
// first counts. A send waits for the network, the peer or the GPU. A receive
// waits for arrival, the flush or the GPU.
enum class Awaits : uint8_t { kNothing, kTransport, kPeerOrFlush, kGpu };

Awaits awaitedIn(int state) noexcept {
  switch (state) {
    case kSendGpuWait:
    case kRecvGpuWait:
      return Awaits::kGpu;
    case kSendPeerWait:
    case kRecvFlushWait:
      return Awaits::kPeerOrFlush;
    case kSendWait:
    case kRecvWait:
      return Awaits::kTransport;
    default:
      return Awaits::kNothing;
  }
}

struct Transfer {
  std::atomic_flag used; // held only for a few instructions
  uint32_t use = 0;
  bool pending = false;
  Record record;
  uint64_t bytes = 0;
  uint64_t since_ns = 0; // time of the last change of `steps`
  std::array<Awaits, kStepsInFlight> steps{};

  void set(int step, Awaits awaited) noexcept {
    const uint64_t now_ns = nowNs();
    Awaits first = Awaits::kNothing;
    for (const Awaits each : steps) {
      if (each != Awaits::kNothing &&
          (first == Awaits::kNothing || each < first)) {
        first = each;
      }
    }
    if (first == Awaits::kGpu) {
      record.bytes_in += now_ns - since_ns;
    } else if (first == Awaits::kPeerOrFlush) {
      record.bytes_out += now_ns - since_ns;
    }
    record.timestamp_ns =
        record.timestamp_ns == 0 ? now_ns : record.timestamp_ns;
    record.value = since_ns = now_ns;
    steps[size_t(step)] = awaited;
  }
};

constinit std::array<Transfer, kTransfers> g_transfers{};
std::atomic<uint64_t> g_transfers_begun{0};

// Calls `body` with the transfer of a handle, if the transfer is pending.
template <class Body>
void withTransfer(Handle handle, Body body) noexcept {
  if (handle.slot() >= kTransfers) {
    return;
  }
  Transfer& transfer = g_transfers[handle.slot()];
  const Held held(transfer.used);
  if (transfer.pending && transfer.use == handle.use()) {
    body(transfer);
  }
}

} // namespace

Handle beginTransfer(
    const OperationId& operation,
    const ProxyOpFields& fields) noexcept {
  const Turn turn = nextTurn(g_transfers_begun, kTransfers);
  Transfer& transfer = g_transfers[turn.slot];
  if (transfer.used.test_and_set(std::memory_order_acquire)) {
    Recorder::instance().countDropped();
    return {};
  }
  if (transfer.pending) {
    // The earlier transfer in this slot did not end, because its communicator
    // was aborted.
    Recorder::instance().countDropped();
  }
  transfer.pending = true;
  transfer.use = turn.use;
  transfer.record = Record();
  transfer.record.kind =
      fields.is_send != 0 ? Kind::kNcclSend : Kind::kNcclRecv;
  transfer.record.op_id = operation.op_id;
  transfer.record.group = operation.communicator;
  transfer.record.aux = uint32_t(fields.peer);
  transfer.record.dtype = fields.channel;
  transfer.bytes = transfer.since_ns = 0;
  transfer.steps = {};
  const Handle handle{Tag::kTransfer, 0, turn.slot, turn.use};
  transfer.used.clear(std::memory_order_release);
  return handle;
}

void endTransfer(Handle handle) noexcept {
  withTransfer(handle, [](Transfer& transfer) {
    transfer.pending = false;
    Record record = transfer.record;
    record.thread = uint32_t(transfer.bytes);
    record.seq = uint32_t(transfer.bytes >> 32);
    if (record.timestamp_ns != 0) { // the transfer had steps
      Recorder::instance().push(record);
    }
  });
}

Handle beginStep(Handle handle, int step) noexcept {
  Handle begun;
  if (handle.tag() == Tag::kTransfer) {
    withTransfer(handle, [&](Transfer& transfer) {
      const auto place = uint8_t(unsigned(step) % kStepsInFlight);
      const bool sends = transfer.record.kind == Kind::kNcclSend;
      transfer.set(place, sends ? Awaits::kGpu : Awaits::kTransport);
      begun = {Tag::kStep, place, handle.slot(), handle.use()};
    });
  }
  return begun;
}

void recordStepState(Handle handle, int state, const StateArgs* args) noexcept {
  const Awaits awaited = awaitedIn(state);
  if (awaited == Awaits::kNothing) {
    return;
  }
  withTransfer(handle, [&](Transfer& transfer) {
    transfer.set(handle.channel() % kStepsInFlight, awaited);
    if ((state == kSendWait || state == kRecvFlushWait) && args != nullptr) {
      transfer.bytes += args->bytes;
    }
  });
}

void endStep(Handle handle) noexcept {
  withTransfer(handle, [&](Transfer& transfer) {
    transfer.set(handle.channel() % kStepsInFlight, Awaits::kNothing);
  });
}

} // namespace commprof::nccl
