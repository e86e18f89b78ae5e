// How the ranks of a group find each other and connect.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/sockets/mesh.h"
#include "compress/sockets/tcp_socket.h"

namespace commprof::net {

class Listener {
 public:
  // `address`: numeric, under which the other ranks reach this host. Throws as
  // TcpSocket::listening().
  explicit Listener(const std::string& address);

  // What the other ranks need; they must get it in a way that only they read:
  // it holds a secret, and nobody else is let in.
  std::string endpoint() const;

  // All ranks call it, with the endpoints of all by rank; once. Throws
  // std::runtime_error, which names the rank that is missing.
  // `patience`: for all of them; `names` and `timeout`: of the mesh.
  std::shared_ptr<Mesh> connect(
      int rank,
      std::span<const std::string> endpoints,
      std::vector<int> names,
      std::chrono::milliseconds patience,
      std::chrono::milliseconds timeout);

 private:
  const std::string address_;
  const std::string secret_;
  TcpSocket socket_;
};

} // namespace commprof::net
