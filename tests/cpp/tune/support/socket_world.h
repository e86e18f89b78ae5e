#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "thread_transport.h"
#include "tune/compress/sockets/listener.h"
#include "tune/compress/sockets/mesh.h"

namespace commprof::net {

constexpr std::chrono::milliseconds kLongTimeout{20'000};

// Returns each rank's exception, or null. A rank's connections close when
// `body` returns.
inline std::vector<std::exception_ptr> runConnected(
    int world,
    std::chrono::milliseconds timeout,
    const std::function<void(std::shared_ptr<Mesh>)>& body) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> endpoints;
  for (int rank = 0; rank < world; ++rank) {
    listeners.push_back(std::make_unique<Listener>("127.0.0.1"));
    endpoints.push_back(listeners.back()->endpoint());
  }
  // Errors must show a rank's name, not its number.
  std::vector<int> rank_names;
  for (int rank = 0; rank < world; ++rank) {
    rank_names.push_back(10 + rank);
  }
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(
            listeners[size_t(rank)]->connect(
                rank, endpoints, rank_names, kLongTimeout, timeout));
      } catch (...) {
        errors[size_t(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

using Bytes = std::vector<std::byte>;

inline Bytes contentOf(int from, int to, uint32_t number, size_t bytes) {
  Bytes content(bytes);
  uint32_t state = uint32_t(from * 64 + to) * 7919u + number;
  for (size_t at = 0; at < bytes; at += sizeof(state)) {
    state = state * 1664525u + 1013904223u;
    std::memcpy(&content[at], &state, std::min(sizeof(state), bytes - at));
  }
  return content;
}

inline bool sameBytes(const Bytes& one, const Bytes& other) {
  return one.size() == other.size() &&
      (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

struct Round {
  // `bytesOf(from, to)` returns a message's length, or 0 for no message.
  Round(
      compress::Transport& transport,
      uint32_t number,
      const std::function<size_t(int, int)>& bytesOf)
      : rank(transport.rank()), number(number) {
    for (int r = 0; r < transport.size(); ++r) {
      sent.push_back(contentOf(rank, r, number, bytesOf(rank, r)));
      received.emplace_back(bytesOf(r, rank));
    }
    std::vector<std::span<const std::byte>> out(sent.begin(), sent.end());
    std::vector<std::span<std::byte>> in(received.begin(), received.end());
    transfer = transport.exchange(out, in);
  }
  void finish() {
    transfer->wait();
    transfer.reset();
    for (int r = 0; r < int(received.size()); ++r) {
      if (r != rank) {
        const Bytes& got = received[size_t(r)];
        CHECK(sameBytes(got, contentOf(r, rank, number, got.size())));
      }
    }
  }
  int rank;
  uint32_t number;
  std::vector<Bytes> sent, received;
  std::unique_ptr<compress::Transfer> transfer;
};

} // namespace commprof::net
