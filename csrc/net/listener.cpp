#include "net/listener.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace commprof::net {

namespace {

constexpr size_t kSecretBytes = 16;

std::string randomSecret() {
  std::array<unsigned char, kSecretBytes> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

struct Endpoint {
  std::string address;
  uint16_t port = 0;
  std::string secret;
};

Endpoint parse(const std::string& text) {
  Endpoint parsed;
  std::istringstream in(text);
  in >> parsed.address >> parsed.port >> parsed.secret;
  if (!in || parsed.secret.size() != 2 * kSecretBytes) {
    throw std::runtime_error("'" + text + "' is no endpoint");
  }
  return parsed;
}

// What the one that connects says first.
struct Hello {
  std::array<char, 8> magic{'c', 'o', 'm', 'm', 'p', 'r', 'o', 'f'};
  uint32_t version = 1;
  uint32_t rank = 0;
  std::array<char, 2 * kSecretBytes> secret{}; // of the one that accepts
};
static_assert(sizeof(Hello) == 48); // no padding

bool sameSecret(const Hello& hello, const std::string& secret) {
  unsigned different = 0; // takes equally long for all
  for (size_t i = 0; i < secret.size(); ++i) {
    different |= unsigned(hello.secret[i] ^ secret[i]);
  }
  return different == 0;
}

} // namespace

Listener::Listener(const std::string& address)
    : address_(address),
      secret_(randomSecret()),
      socket_(TcpSocket::listening(address)) {}

std::string Listener::endpoint() const {
  return address_ + " " + std::to_string(socket_.port()) + " " + secret_;
}

std::shared_ptr<Mesh> Listener::connect(
    int rank,
    std::span<const std::string> endpoints,
    std::vector<int> names,
    std::chrono::milliseconds patience,
    std::chrono::milliseconds timeout) {
  if (names.size() != endpoints.size()) {
    throw std::runtime_error(
        std::to_string(names.size()) + " names for " +
        std::to_string(endpoints.size()) + " ranks");
  }
  const Deadline deadline = std::chrono::steady_clock::now() + patience;
  std::vector<TcpSocket> sockets(endpoints.size());
  // Lower ranks need not have come to accepting: the kernel does it for them.
  int peer = 0;
  try {
    for (; peer < rank; ++peer) {
      const Endpoint to = parse(endpoints[size_t(peer)]);
      sockets[size_t(peer)] =
          TcpSocket::connected(to.address, to.port, deadline);
      Hello hello;
      hello.rank = uint32_t(rank);
      std::copy(to.secret.begin(), to.secret.end(), hello.secret.begin());
      sockets[size_t(peer)].sendAll(&hello, sizeof(hello), deadline);
    }
    for (auto missing = endpoints.size() - size_t(rank) - 1; missing > 0;) {
      peer =
          int(std::find_if(
                  sockets.begin() + rank + 1,
                  sockets.end(),
                  [](const TcpSocket& one) { return one.fd() < 0; }) -
              sockets.begin());
      int from = 0;
      TcpSocket accepted = acceptFrom(rank, from, deadline);
      if (from < int(sockets.size()) && sockets[size_t(from)].fd() < 0) {
        sockets[size_t(from)] = std::move(accepted);
        --missing;
      }
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(
        "no connection with rank " + std::to_string(names[size_t(peer)]) +
        ": " + error.what());
  }
  return std::make_shared<Mesh>(
      rank, std::move(sockets), std::move(names), timeout);
}

// The next rank that comes; strangers, who know no secret, are sent away.
TcpSocket Listener::acceptFrom(int rank, int& peer, Deadline deadline) const {
  // A rank says who it is as soon as it is connected.
  constexpr auto kPatience = std::chrono::seconds(1);
  for (;;) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::system_error(
          ETIMEDOUT, std::generic_category(), "accept, with strangers");
    }
    TcpSocket accepted = socket_.accepted(deadline);
    Hello hello;
    try {
      accepted.receiveAll(
          &hello,
          sizeof(hello),
          std::min<Deadline>(
              deadline, std::chrono::steady_clock::now() + kPatience));
    } catch (const std::system_error&) {
      continue;
    }
    if (hello.magic == Hello{}.magic && hello.version == Hello{}.version &&
        sameSecret(hello, secret_) && hello.rank > uint32_t(rank)) {
      peer = int(std::min<uint32_t>(hello.rank, 1u << 30));
      return accepted;
    }
  }
}

} // namespace commprof::net
