#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <latch>

#include "check.h"
#include "socket_world.h"

using namespace commprof;
using namespace commprof::net;
using compress::messageOf;
using std::chrono::milliseconds;

namespace {

size_t fourMiB(int, int) {
  return 4 << 20;
}

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) {
    std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), part.c_str());
    return false;
  }
  return true;
}

using Body = std::function<void(SocketTransport&, Mesh&)>;

std::vector<std::exception_ptr> errorsWithVictim(
    const Body& victim,
    int world = 3,
    milliseconds timeout = kLongTimeout) {
  return runConnected(world, timeout, [&](const std::shared_ptr<Mesh>& mesh) {
    SocketTransport transport(mesh, nullptr);
    Round(transport, 0, fourMiB).finish();
    if (mesh->rank() == 1) {
      victim(transport, *mesh);
    } else {
      Round(transport, 1, fourMiB).finish();
    }
  });
}

void checkRankThatEnds() {
  const auto errors = errorsWithVictim([](auto&, auto&) {});
  // Rank 2 names rank 0 instead of rank 1 if rank 0 gave up first.
  for (const int rank : {0, 2}) {
    CHECK(contains(messageOf(errors[size_t(rank)]), "exchange failed: rank "));
    const std::string text = messageOf(errors[size_t(rank)]);
    CHECK(text.find("nothing moved") == std::string::npos);
  }
  const auto pair = errorsWithVictim([](auto&, auto&) {}, 2);
  CHECK(contains(messageOf(pair[0]), "exchange failed: rank 11: it closed"));
}

void checkRankThatAbandons() {
  std::latch error_seen(1);
  const auto errors =
      runConnected(2, kLongTimeout, [&](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        if (mesh->rank() == 1) {
          Round sent(transport, 0, [](int from, int) {
            return size_t(from == 1 ? 1000 : 0);
          });
          sent.finish();
          transport.abandon();
          CHECK(!mesh->usable());
          CHECK_THROWS(
              compress::TransportError, Round(transport, 1, fourMiB).finish());
          error_seen.wait();
          return;
        }
        Round(transport, 0, [](int from, int) {
          return size_t(from == 1 ? 1000 : 0);
        }).finish();
        std::string reason;
        try {
          Round(transport, 1, fourMiB).finish();
        } catch (const compress::TransportError& error) {
          reason = error.what();
        }
        CHECK(contains(reason, "rank 11: it closed the connection"));
        CHECK(!mesh->usable());
        error_seen.count_down();
      });
  CHECK_EQ(messageOf(errors[0]), "");
  CHECK_EQ(messageOf(errors[1]), "");
}

// A rank that only sends does not read, and must still detect that its peer
// closed the connection.
void checkSenderDetectsClosedConnection() {
  std::latch error_seen(1);
  const auto only_to_1 = [](int from, int to) {
    return from == 0 && to == 1 ? size_t(64) << 20 : size_t(0);
  };
  const auto errors =
      runConnected(2, kLongTimeout, [&](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        if (mesh->rank() == 1) {
          transport.abandon();
          error_seen.wait();
          return;
        }
        std::string reason;
        try {
          Round(transport, 0, only_to_1).finish();
        } catch (const compress::TransportError& error) {
          reason = error.what();
        }
        CHECK(contains(reason, "rank 11: it closed the connection"));
        error_seen.count_down();
      });
  CHECK_EQ(messageOf(errors[0]), "");
}

void checkTimeoutWithoutProgress() {
  std::latch error_seen(1);
  const auto errors = runConnected(
      2, milliseconds(300), [&](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        if (mesh->rank() == 1) {
          error_seen.wait();
          return;
        }
        std::string reason;
        try {
          Round(transport, 0, fourMiB).finish();
        } catch (const compress::TransportError& error) {
          reason = error.what();
        }
        error_seen.count_down();
        CHECK(contains(reason, "exchange failed: nothing moved"));
        CHECK(contains(reason, "300 ms"));
        CHECK(contains(reason, ": 0 of 4194304 bytes from rank 11"));
      });
  CHECK_EQ(messageOf(errors[0]), "");
}

void checkDifferentMessageLengths() {
  const auto errors = errorsWithVictim(
      [](SocketTransport& transport, Mesh&) {
        Round(transport, 1, [](int, int) { return size_t(5000); }).finish();
      },
      2);
  CHECK(contains(messageOf(errors[0]), "its message 1 has 5000 bytes"));
  CHECK(contains(messageOf(errors[0]), "4194304 bytes was due"));
  CHECK(errors[1] != nullptr);
}

void checkInterrupt() {
  std::latch waiting(1), done(1);
  const auto errors =
      runConnected(2, kLongTimeout, [&](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        if (mesh->rank() == 1) {
          done.wait();
          return;
        }
        std::thread other([&] {
          waiting.wait();
          std::this_thread::sleep_for(milliseconds(50));
          transport.interrupt();
        });
        Round round(transport, 0, fourMiB);
        waiting.count_down();
        const auto begin = std::chrono::steady_clock::now();
        std::string reason;
        try {
          round.finish();
        } catch (const compress::TransportError& error) {
          reason = error.what();
        }
        other.join();
        CHECK_EQ(reason, "exchange was stopped on this rank");
        CHECK(std::chrono::steady_clock::now() - begin < kLongTimeout / 4);
        CHECK(!mesh->usable());
        done.count_down();
      });
  CHECK_EQ(messageOf(errors[0]), "");
}

// A Hello begins with "commprof", but strangers do not know the secret.
void checkForeignConnections() {
  Listener first("127.0.0.1"), second("127.0.0.1");
  const std::vector<std::string> endpoints = {
      first.endpoint(), second.endpoint()};
  const uint16_t port =
      uint16_t(std::stoi(endpoints[0].substr(std::strlen("127.0.0.1 "))));
  const Deadline deadline = std::chrono::steady_clock::now() + kLongTimeout;
  std::vector<TcpSocket> foreign_sockets;
  for (const std::string& greeting :
       {std::string(), std::string(500, 'x'), std::string("commprof")}) {
    foreign_sockets.push_back(
        TcpSocket::connected("127.0.0.1", port, deadline));
    foreign_sockets.back().sendAll(greeting.data(), greeting.size(), deadline);
  }
  std::string wrong_endpoint = endpoints[0];
  wrong_endpoint.back() = wrong_endpoint.back() == '0' ? '1' : '0';
  Listener wrong_peer("127.0.0.1");
  wrong_peer.connect(
      1,
      std::vector{wrong_endpoint, endpoints[1]},
      {0, 1},
      kLongTimeout,
      kLongTimeout);
  std::shared_ptr<Mesh> mesh;
  std::thread rank0([&] {
    mesh = first.connect(0, endpoints, {0, 1}, kLongTimeout, kLongTimeout);
    SocketTransport transport(mesh, nullptr);
    Round(transport, 0, fourMiB).finish();
  });
  SocketTransport transport(
      second.connect(1, endpoints, {0, 1}, kLongTimeout, kLongTimeout),
      nullptr);
  Round(transport, 0, fourMiB).finish();
  rank0.join();
  CHECK_EQ(mesh->size(), 2);
}

void checkManySilentConnections() {
  constexpr milliseconds kShortTimeout{3000};
  Listener first("127.0.0.1"), second("127.0.0.1");
  const std::vector<std::string> endpoints = {
      first.endpoint(), second.endpoint()};
  const uint16_t port =
      uint16_t(std::stoi(endpoints[0].substr(std::strlen("127.0.0.1 "))));
  std::vector<TcpSocket> silent_sockets;
  for (int i = 0; i < 200; ++i) {
    silent_sockets.push_back(
        TcpSocket::connected(
            "127.0.0.1",
            port,
            std::chrono::steady_clock::now() + kLongTimeout));
  }
  std::shared_ptr<Mesh> mesh;
  std::thread rank0([&] {
    mesh = first.connect(0, endpoints, {0, 1}, kShortTimeout, kLongTimeout);
  });
  SocketTransport transport(
      second.connect(1, endpoints, {0, 1}, kShortTimeout, kLongTimeout),
      nullptr);
  rank0.join();
  CHECK(mesh != nullptr);
}

// A forked child, such as a DataLoader worker, may outlive its rank.
void checkForkedChild() {
  std::unique_ptr<Listener> first = std::make_unique<Listener>("127.0.0.1");
  Listener second("127.0.0.1");
  const std::vector<std::string> endpoints = {
      first->endpoint(), second.endpoint()};
  std::shared_ptr<Mesh> mesh, victim;
  std::thread rank0([&] {
    mesh = first->connect(0, endpoints, {0, 1}, kLongTimeout, kLongTimeout);
  });
  victim = second.connect(1, endpoints, {0, 1}, kLongTimeout, kLongTimeout);
  rank0.join();
  const pid_t child = fork();
  if (child == 0) {
    // The socket is already closed in a child, so open() reuses its number.
    const int reused_fd = open("/dev/null", O_RDONLY);
    victim.reset();
    first.reset();
    if (fcntl(reused_fd, F_GETFD) < 0) {
      _exit(1);
    }
    pause();
  }
  usleep(100000);
  victim.reset();
  SocketTransport transport(mesh, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS(compress::TransportError, Round(transport, 0, [](int from, int) {
                                           return size_t(from == 1 ? 1000 : 0);
                                         }).finish());
  CHECK(std::chrono::steady_clock::now() - begin < kLongTimeout / 4);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

std::string reasonOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing thrown";
}

void checkMissingPeersAndBadEndpoints() {
  Listener listener("127.0.0.1");
  std::string closed_endpoint;
  {
    closed_endpoint = Listener("127.0.0.1").endpoint();
  }
  const std::vector<std::string> endpoints = {
      listener.endpoint(), closed_endpoint, listener.endpoint()};
  CHECK(contains(
      reasonOf([&] {
        listener.connect(
            0, endpoints, {0, 5, 2}, milliseconds(100), kLongTimeout);
      }),
      "no connection with rank 5: accept"));
  CHECK(contains(
      reasonOf([&] {
        listener.connect(
            2,
            std::vector{closed_endpoint, closed_endpoint, listener.endpoint()},
            {0, 1, 2},
            milliseconds(100),
            kLongTimeout);
      }),
      "no connection with rank 0: connect to 127.0.0.1 port "));
  const std::string secret = closed_endpoint.substr(closed_endpoint.rfind(' '));
  for (const std::string& wrong :
       {std::string("127.0.0.1 99"),
        "127.0.0.1 99" + secret + "0",
        "127.0.0.1 65536" + secret,
        "127.0.0.1 12x" + secret,
        "127.0.0.1 " + secret,
        "127.0.0.1" + secret}) {
    CHECK(contains(
        reasonOf([&] {
          listener.connect(
              1,
              std::vector<std::string>{wrong, listener.endpoint()},
              {0, 1},
              milliseconds(100),
              kLongTimeout);
        }),
        "'" + wrong +
            "' is no endpoint (expected: an address, a port and 32 "
            "hexadecimal digits, separated by spaces)"));
  }
  CHECK_THROWS(std::invalid_argument, Listener("no.address"));
  // No host has an address of the range 192.0.2.0/24.
  CHECK_THROWS(std::system_error, Listener("192.0.2.1"));
}

} // namespace

int main() {
  checkRankThatEnds();
  checkRankThatAbandons();
  checkSenderDetectsClosedConnection();
  checkTimeoutWithoutProgress();
  checkDifferentMessageLengths();
  checkInterrupt();
  checkForeignConnections();
  checkManySilentConnections();
  checkForkedChild();
  checkMissingPeersAndBadEndpoints();
  return check::report();
}
