// Listening socket through which the ranks of a group connect to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tune/compress/sockets/mesh.h"
#include "tune/compress/sockets/tcp_socket.h"

namespace commprof::net {

class Listener {
 public:
  // `address`: numeric address at which the other ranks reach this host. Throws
  // as TcpSocket::listening().
  explicit Listener(const std::string& address);

  // Returns what the other ranks need to connect. It contains a secret without
  // which no connection is accepted, so only the other ranks may read it.
  std::string endpoint() const;

  // Connects the ranks. All ranks call it once with all endpoints, by rank.
  // Throws std::runtime_error that names the missing rank. `patience`: time
  // limit for all connections; `names` and `timeout`: see Mesh.
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
