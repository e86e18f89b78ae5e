// A compressor's transport over connections of its own: its messages move in
// the thread that waits for them, without another thread to wake on the way.
#pragma once

#include <memory>
#include <span>

#include "compress/exchange/transport.h"
#include "compress/sockets/mesh.h"

namespace commprof::net {

class SocketTransport final : public compress::Transport {
 public:
  // `sums`: of the same ranks, does the all-reduces. The mesh may have other
  // users before and after, but none meanwhile.
  SocketTransport(
      std::shared_ptr<Mesh> mesh,
      std::unique_ptr<compress::Transport> sums);

  int rank() const override {
    return mesh_->rank();
  }
  int size() const override {
    return mesh_->size();
  }
  std::unique_ptr<compress::Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) override;
  std::unique_ptr<compress::Transfer> allReduceSum(
      std::span<float> data) override;
  int nameOf(int rank) const override {
    return mesh_->nameOf(rank);
  }
  // Both of messages only: a sum runs into the timeout of `sums`.
  void abandon() noexcept override {
    mesh_->abandon();
  }
  void interrupt() noexcept override {
    mesh_->interrupt();
  }

 private:
  const std::shared_ptr<Mesh> mesh_;
  const std::unique_ptr<compress::Transport> sums_;
};

} // namespace commprof::net
