#include "tune/compress/sockets/listener.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
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
  const size_t first = text.find(' ');
  const size_t second = text.find(' ', first + 1);
  uint16_t port = 0;
  if (first != std::string::npos && second != std::string::npos &&
      text.size() - second - 1 == 2 * kSecretBytes) {
    const char* const end = text.data() + second;
    const auto read = std::from_chars(text.data() + first + 1, end, port);
    if (read.ec == std::errc() && read.ptr == end) {
      return {text.substr(0, first), port, text.substr(second + 1)};
    }
  }
  throw std::runtime_error(
      "'" + text + "' is no endpoint (expected: an address, a port and " +
      std::to_string(2 * kSecretBytes) +
      " hexadecimal digits, separated by spaces)");
}

struct Hello {
  std::array<char, 8> magic{'c', 'o', 'm', 'm', 'p', 'r', 'o', 'f'};
  uint32_t version = 1;
  uint32_t rank = 0;
  std::array<char, 2 * kSecretBytes> secret{}; // secret of the accepting rank
};
static_assert(sizeof(Hello) == 48); // no padding

bool sameSecret(const Hello& hello, const std::string& secret) {
  unsigned different = 0; // no early exit: constant time for all inputs
  for (size_t i = 0; i < secret.size(); ++i) {
    different |= unsigned(hello.secret[i] ^ secret[i]);
  }
  return different == 0;
}

// Accepted connections that have not sent their Hello yet. They are read
// together, so that a silent connection does not delay the others.
class Callers {
 public:
  Callers(const TcpSocket& listening, const std::string& secret, size_t ranks)
      : listening_(listening), secret_(secret), most_(ranks + kStrangers) {}

  TcpSocket next(uint32_t& rank, Deadline deadline) {
    for (;;) {
      const auto complete = std::ranges::find_if(
          callers_,
          [](const Caller& one) { return one.hello_bytes == sizeof(Hello); });
      if (complete == callers_.end()) {
        await(deadline);
        continue;
      }
      Caller caller = std::move(*complete);
      callers_.erase(complete);
      if (caller.hello.magic == Hello{}.magic &&
          caller.hello.version == Hello{}.version &&
          sameSecret(caller.hello, secret_)) {
        rank = caller.hello.rank;
        return std::move(caller.socket);
      }
    }
  }

 private:
  // Number of kept connections in addition to one per rank. If there are more
  // connections, the oldest one is dropped.
  static constexpr size_t kStrangers = 64;

  struct Caller {
    TcpSocket socket;
    Hello hello;
    size_t hello_bytes = 0;
  };

  void await(Deadline deadline) {
    std::vector<pollfd> awaited{{listening_.fd(), POLLIN, 0}};
    for (const Caller& caller : callers_) {
      awaited.push_back({caller.socket.fd(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      throw std::system_error(ETIMEDOUT, std::generic_category(), "accept");
    }
    if (poll(awaited.data(), awaited.size(), pollMs(left)) < 0) {
      if (errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "poll");
      }
      return;
    }
    for (size_t i = callers_.size(); i-- > 0;) {
      if (awaited[i + 1].revents != 0 && !readHello(callers_[i])) {
        callers_.erase(callers_.begin() + long(i));
      }
    }
    if (awaited[0].revents != 0) {
      admit();
    }
  }

  void admit() {
    while (std::optional<TcpSocket> socket = listening_.accepted()) {
      if (callers_.size() == most_) {
        callers_.erase(callers_.begin());
      }
      callers_.push_back({std::move(*socket), {}, 0});
      if (!readHello(callers_.back())) { // ranks send Hello immediately
        callers_.pop_back();
      }
    }
  }

  static bool readHello(Caller& caller) {
    while (caller.hello_bytes < sizeof(Hello)) {
      const ssize_t bytes = recv(
          caller.socket.fd(),
          reinterpret_cast<char*>(&caller.hello) + caller.hello_bytes,
          sizeof(Hello) - caller.hello_bytes,
          0);
      if (bytes > 0) {
        caller.hello_bytes += size_t(bytes);
      } else if (bytes == 0 || (errno != EINTR && errno != EAGAIN)) {
        return false;
      } else if (errno == EAGAIN) {
        break;
      }
    }
    return true;
  }

  static int pollMs(std::chrono::milliseconds time) {
    return int(std::min<int64_t>(time.count(), 1 << 30));
  }

  const TcpSocket& listening_;
  const std::string& secret_;
  const size_t most_;
  std::vector<Caller> callers_; // in order of arrival
};

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
        std::to_string(names.size()) + " names were given for " +
        std::to_string(endpoints.size()) + " ranks; give one for each rank");
  }
  const Deadline deadline = std::chrono::steady_clock::now() + patience;
  std::vector<TcpSocket> sockets(endpoints.size());
  // Lower ranks need not call accept() yet: the kernel queues connections.
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
    Callers callers(socket_, secret_, endpoints.size());
    for (auto missing = endpoints.size() - size_t(rank) - 1; missing > 0;) {
      peer =
          int(std::find_if(
                  sockets.begin() + rank + 1,
                  sockets.end(),
                  [](const TcpSocket& one) { return one.fd() < 0; }) -
              sockets.begin());
      uint32_t from = 0;
      TcpSocket accepted = callers.next(from, deadline);
      if (from > uint32_t(rank) && from < sockets.size() &&
          sockets[from].fd() < 0) {
        sockets[from] = std::move(accepted);
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

} // namespace commprof::net
