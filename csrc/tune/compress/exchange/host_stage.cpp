#include "tune/compress/exchange/host_stage.h"

#include <cmath>
#include <string>
#include <utility>

#include "tune/compress/exchange/messages/channel.h"

namespace commprof::compress {

namespace {

std::byte* bytesOf(const Bucket& bucket) {
  return reinterpret_cast<std::byte*>(bucket.gradient);
}

} // namespace

std::vector<shm::Slice> wholeSlots(std::span<const Slot> slots, int owners) {
  const size_t total =
      slots.empty() ? 0 : slots.back().offset + slots.back().numel;
  std::vector<shm::Slice> slices;
  size_t begin = 0;
  size_t next = 0;
  for (int owner = 0; owner < owners; ++owner) {
    // Cuts nearly equal parts: a slot belongs to the part that contains its
    // middle.
    const size_t until = total * size_t(owner + 1) / size_t(owners);
    size_t end = begin;
    while (next < slots.size() &&
           (owner + 1 == owners ||
            slots[next].offset + slots[next].numel / 2 < until)) {
      end = slots[next].offset + slots[next].numel;
      ++next;
    }
    slices.push_back({begin, end});
    begin = end;
  }
  return slices;
}

HostStage::HostStage(
    std::shared_ptr<shm::Team> team,
    int owners,
    int hosts,
    int world)
    : team_(std::move(team)),
      owners_(owners),
      scale_(float(double(hosts) / world)) {}

void HostStage::run(
    Compressor& compressor,
    const Bucket& bucket,
    Transport* transport,
    BucketReport& report) {
  try {
    BucketReport before;
    const Bucket part = addUp(compressor, bucket, before);
    if (part.numel != 0) {
      compressor.run(part, *transport, report);
    }
    report.spans.insert(
        report.spans.begin(), before.spans.begin(), before.spans.end());
    share(bucket, report);
    takeBack(compressor, bucket);
  } catch (const shm::TeamError&) {
    throw;
  } catch (const std::exception& error) {
    // The other ranks of this host must not wait for this rank.
    team_->abandon(std::string("between hosts: ") + error.what());
    throw;
  }
}

void HostStage::abandon(const std::string& why) noexcept {
  team_->abandon(why);
}

Bucket HostStage::addUp(
    Compressor& compressor,
    const Bucket& bucket,
    BucketReport& report) {
  const StageTimer timer(report, Stage::kReduce);
  slices_ = wholeSlots(bucket.slots, owners_);
  const shm::Slice own =
      team_->rank() < owners_ ? slices_[size_t(team_->rank())] : shm::Slice{};
  slots_.clear();
  handed_over_.clear();
  for (Slot slot : bucket.slots) {
    if (slot.offset >= own.begin && slot.offset + slot.numel <= own.end) {
      slot.offset -= own.begin;
      slots_.push_back(slot);
    } else {
      handOver(compressor, bucket, slot);
    }
  }
  shm::reduceToOwners(
      *team_,
      bytesOf(bucket),
      slices_,
      kernels::Element::kF32,
      kernels::Reduction::kSum);
  Bucket part = bucket;
  part.gradient += own.begin;
  part.numel = own.count();
  part.slots = slots_;
  part.signature = signatureOf(slots_);
  for (size_t i = 0; i < part.numel; ++i) {
    part.gradient[i] *= scale_;
  }
  return part;
}

void HostStage::handOver(
    Compressor& compressor,
    const Bucket& bucket,
    const Slot& slot) {
  std::vector<float> residual = compressor.takeResidual(bucket, slot);
  if (residual.empty()) {
    return;
  }
  float* const gradient = bucket.gradient + slot.offset;
  for (size_t i = 0; i < residual.size(); ++i) {
    gradient[i] += residual[i] / scale_; // the owner multiplies by scale_
  }
  handed_over_.emplace_back(slot, std::move(residual));
}

void HostStage::takeBack(Compressor& compressor, const Bucket& bucket) {
  for (auto& [slot, residual] : handed_over_) {
    if (std::isnan(bucket.gradient[slot.offset])) {
      compressor.putBack(slot, std::move(residual));
    }
  }
}

void HostStage::share(const Bucket& bucket, BucketReport& report) {
  const StageTimer timer(report, Stage::kDecode);
  shm::shareFromOwners(
      *team_, bytesOf(bucket), slices_, kernels::Element::kF32);
}

} // namespace commprof::compress
