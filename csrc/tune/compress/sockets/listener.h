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
  // the errors of TcpSocket::listening().
  explicit Listener(const std::string& address);

  // Returns the text that the other ranks need to connect. The text contains a
  // secret, so only the other ranks may read it.
  std::string endpoint() const;

  // Connects the ranks. Every rank calls it once, with the endpoints of all
  // ranks in rank order. Throws std::runtime_error, which names the missing
  // rank. `patience`: time limit for all connections; `names` and `timeout`:
  // see Mesh.
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
