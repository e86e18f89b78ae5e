#include "tune/compress/residuals.h"

#include <algorithm>
#include <stdexcept>

#include "base/text.h"
#include "tune/kernels/linear/compare.h"

namespace commprof::compress {

namespace {

void checkSize(const Slot& slot, size_t numel) {
  if (numel != slot.numel) {
    throw std::invalid_argument(textOf(
        "residual of parameter ",
        slot.parameter,
        " has ",
        numel,
        " values, but the parameter has ",
        slot.numel,
        ": load a state that was saved with this model"));
  }
}

bool allZero(const float* x, size_t n) {
  constexpr size_t kPart = 4096;
  for (size_t at = 0; at < n; at += kPart) {
    if (kernels::maxAbsBits(x + at, std::min(kPart, n - at)) != 0) {
      return false;
    }
  }
  return true;
}

} // namespace

float* Residuals::forBucket(const Bucket& bucket) {
  Arena& arena = arenas_[bucket.signature];
  if (arena.numel != bucket.numel) {
    std::fill_n(arena.values.reserveFloats(bucket.numel), bucket.numel, 0.0f);
    arena.numel = bucket.numel;
    arena.slots.assign(bucket.slots.begin(), bucket.slots.end());
  }
  if (arena.owned != arena.slots.size()) {
    for (const Slot& slot : bucket.slots) {
      bring(slot, bucket.signature, arena);
    }
    arena.owned = arena.slots.size();
  }
  return arena.values.floats();
}

float* Residuals::replace(uint64_t signature, Scratch& next) {
  Arena& arena = arenas_.at(signature);
  std::swap(arena.values, next);
  return arena.values.floats();
}

void Residuals::bring(const Slot& slot, uint64_t signature, Arena& arena) {
  float* const to = arena.values.floats() + slot.offset;
  if (const auto stored = loaded_.find(slot.parameter);
      stored != loaded_.end()) {
    checkSize(slot, stored->second.size());
    std::copy(stored->second.begin(), stored->second.end(), to);
    loaded_.erase(stored);
  } else if (
      const auto home = homes_.find(slot.parameter); home != homes_.end()) {
    if (home->second.signature == signature) {
      return;
    }
    checkSize(slot, home->second.numel);
    const float* from =
        arenas_[home->second.signature].values.floats() + home->second.offset;
    std::copy(from, from + slot.numel, to);
    leave(home->second);
  }
  homes_[slot.parameter] = {signature, slot.offset, slot.numel};
}

void Residuals::leave(const Home& home) {
  Arena& old = arenas_[home.signature];
  std::fill_n(old.values.floats() + home.offset, home.numel, 0.0f);
  if (--old.owned == 0) {
    arenas_.erase(home.signature);
  }
}

std::vector<float> Residuals::take(const Bucket& bucket, const Slot& slot) {
  if (!holdsAny({&slot, 1}) ||
      allZero(bucket.gradient + slot.offset, slot.numel)) {
    return {};
  }
  std::vector<float> taken;
  if (const auto stored = loaded_.find(slot.parameter);
      stored != loaded_.end()) {
    taken = std::move(stored->second);
    loaded_.erase(stored);
  } else {
    const auto home = homes_.find(slot.parameter);
    const float* from = arenas_.at(home->second.signature).values.floats() +
        home->second.offset;
    taken.assign(from, from + home->second.numel);
    leave(home->second);
    homes_.erase(home);
  }
  checkSize(slot, taken.size());
  return taken;
}

bool Residuals::holdsAny(std::span<const Slot> slots) const {
  return std::any_of(slots.begin(), slots.end(), [this](const Slot& slot) {
    return homes_.contains(slot.parameter) || loaded_.contains(slot.parameter);
  });
}

float* Residuals::find(uint64_t signature) {
  const auto arena = arenas_.find(signature);
  return arena == arenas_.end() ? nullptr : arena->second.values.floats();
}

std::span<const Slot> Residuals::slotsOf(uint64_t signature) const {
  const auto arena = arenas_.find(signature);
  return arena == arenas_.end() ? std::span<const Slot>{}
                                : std::span<const Slot>(arena->second.slots);
}

void Residuals::scale(float factor) {
  const auto scaleAll = [factor](std::span<float> values) {
    for (float& value : values) {
      value *= factor;
    }
  };
  for (auto& [signature, arena] : arenas_) {
    scaleAll({arena.values.floats(), arena.numel});
  }
  for (auto& [parameter, values] : loaded_) {
    scaleAll(values);
  }
}

void Residuals::clear() {
  arenas_.clear();
  homes_.clear();
  loaded_.clear();
}

void Residuals::save(std::vector<ParameterState>& state) const {
  for (const auto& [parameter, home] : homes_) {
    const float* from =
        arenas_.at(home.signature).values.floats() + home.offset;
    state.push_back({parameter, "residual", {from, from + home.numel}});
  }
  for (const auto& [parameter, values] : loaded_) {
    state.push_back({parameter, "residual", values});
  }
}

void Residuals::load(const ParameterState& state) {
  loaded_[state.parameter] = state.values;
}

UnsentResiduals::UnsentResiduals(const Bucket& bucket, float* residual)
    : residual_(residual) {
  if (residual == nullptr) {
    return;
  }
  for (const Slot& slot : bucket.slots) {
    float* const own = residual + slot.offset;
    if (allZero(bucket.gradient + slot.offset, slot.numel) &&
        !allZero(own, slot.numel)) {
      aside_.emplace_back(
          slot.offset, std::vector<float>(own, own + slot.numel));
      std::fill_n(own, slot.numel, 0.0f);
    }
  }
}

void UnsentResiduals::putBack() {
  for (const auto& [offset, values] : aside_) {
    for (size_t i = 0; i < values.size(); ++i) {
      residual_[offset + i] += values[i];
    }
  }
  aside_.clear();
}

} // namespace commprof::compress
