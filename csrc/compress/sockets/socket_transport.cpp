#include "compress/sockets/socket_transport.h"

#include <utility>

namespace commprof::net {

namespace {

class Messages final : public compress::Transfer {
 public:
  explicit Messages(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}
  // With messages under way it was given up, and what follows them in their
  // streams has no meaning any more.
  ~Messages() override {
    if (left_ != 0) {
      mesh_->abandon();
    }
  }
  void begin(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) {
    mesh_->begin(send, recv, &left_);
  }
  void wait() override {
    mesh_->finish(&left_);
  }

 private:
  const std::shared_ptr<Mesh> mesh_;
  int left_ = 0;
};

} // namespace

SocketTransport::SocketTransport(
    std::shared_ptr<Mesh> mesh,
    std::unique_ptr<compress::Transport> sums)
    : mesh_(std::move(mesh)), sums_(std::move(sums)) {}

std::unique_ptr<compress::Transfer> SocketTransport::exchange(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> recv) {
  auto messages = std::make_unique<Messages>(mesh_);
  messages->begin(send, recv);
  return messages;
}

std::unique_ptr<compress::Transfer> SocketTransport::allReduceSum(
    std::span<float> data) {
  return sums_->allReduceSum(data);
}

} // namespace commprof::net
