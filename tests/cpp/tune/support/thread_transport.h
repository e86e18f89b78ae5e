#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "tune/compress/exchange/transport.h"

namespace commprof::compress {

class ThreadGroup {
 public:
  using Message = std::vector<std::byte>;

  explicit ThreadGroup(int world) : world_(world) {}

  std::function<void(int from, int to, uint64_t sequence, Message&)> tamper;
  // If `fails` returns true, the transfer's wait() throws.
  std::function<bool(int rank, uint64_t sequence)> fails;

  int world() const {
    return world_;
  }

  void post(int from, int to, uint64_t sequence, Message message) {
    const std::lock_guard lock(mutex_);
    if (tamper) {
      tamper(from, to, sequence, message);
    }
    mail_[{uint64_t(from), uint64_t(to), sequence}] = std::move(message);
    arrived_.notify_all();
  }

  Message take(int from, int to, uint64_t sequence) {
    std::unique_lock lock(mutex_);
    const std::array<uint64_t, 3> key{uint64_t(from), uint64_t(to), sequence};
    const bool here = arrived_.wait_for(lock, std::chrono::seconds(60), [&] {
      return mail_.contains(key) || left_.contains(from);
    });
    const auto found = mail_.find(key);
    if (!here || found == mail_.end()) {
      throw TransportError("rank " + std::to_string(from) + " is gone");
    }
    Message message = std::move(found->second);
    mail_.erase(found);
    return message;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_.insert(rank);
    arrived_.notify_all();
  }

 private:
  int world_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::array<uint64_t, 3>, Message> mail_;
  std::set<int> left_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return group_.world();
  }
  uint64_t sentBytes() const {
    return sent_bytes_;
  }

  std::unique_ptr<Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) override {
    auto transfer = std::make_unique<Exchange>(*this, sequence_++);
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) {
        continue;
      }
      if (!send[r].empty()) {
        group_.post(rank_, r, transfer->sequence, copy(send[r]));
        transfer->sent.push_back({send[r], copy(send[r])});
        sent_bytes_ += send[r].size();
      }
      std::fill(recv[r].begin(), recv[r].end(), std::byte{0xa5});
    }
    transfer->recv.assign(recv.begin(), recv.end());
    return transfer;
  }

  std::unique_ptr<Transfer> allReduceSum(std::span<float> data) override {
    auto transfer = std::make_unique<Sum>(*this, sequence_++);
    for (int r = 0; r < size(); ++r) {
      group_.post(rank_, r, transfer->sequence, copy(std::as_bytes(data)));
    }
    transfer->data = data;
    return transfer;
  }

 private:
  using Message = ThreadGroup::Message;

  static Message copy(std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }

  struct Begun : Transfer {
    Begun(ThreadTransport& owner, uint64_t number)
        : transport(owner), sequence(number) {}
    void failIfAsked() const {
      ThreadGroup& group = transport.group_;
      if (group.fails && group.fails(transport.rank_, sequence)) {
        throw TransportError("transfer failed, as the test asked");
      }
    }
    ThreadTransport& transport;
    uint64_t sequence;
  };

  struct Exchange : Begun {
    using Begun::Begun;
    void wait() override {
      failIfAsked();
      for (int r = 0; r < transport.size(); ++r) {
        if (r == transport.rank_ || recv[size_t(r)].empty()) {
          continue;
        }
        const Message message =
            transport.group_.take(r, transport.rank_, sequence);
        if (message.size() != recv[size_t(r)].size()) {
          throw TransportError("lengths of the two ends differ");
        }
        std::memcpy(recv[size_t(r)].data(), message.data(), message.size());
      }
      for (const auto& [span, as_sent] :
           sent) { // The caller must not have changed the buffers.
        CHECK(std::equal(span.begin(), span.end(), as_sent.begin()));
      }
    }
    std::vector<std::pair<std::span<const std::byte>, Message>> sent;
    std::vector<std::span<std::byte>> recv;
  };

  struct Sum : Begun {
    using Begun::Begun;
    void wait() override {
      failIfAsked();
      std::vector<float> part(data.size());
      std::fill(data.begin(), data.end(), 0.0f);
      for (int r = 0; r < transport.size(); ++r) {
        const Message message =
            transport.group_.take(r, transport.rank_, sequence);
        if (message.size() != data.size_bytes()) {
          throw TransportError("lengths of the two ends differ");
        }
        std::memcpy(part.data(), message.data(), message.size());
        for (size_t i = 0; i < data.size(); ++i) {
          data[i] += part[i];
        }
      }
    }
    std::span<float> data;
  };

  ThreadGroup& group_;
  int rank_;
  uint64_t sequence_ = 0;
  uint64_t sent_bytes_ = 0;
};

// Returns each rank's exception, or null.
inline std::vector<std::exception_ptr> runRanks(
    ThreadGroup& group,
    const std::function<void(ThreadTransport&)>& body) {
  std::vector<std::exception_ptr> errors(size_t(group.world()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.world(); ++rank) {
    threads.emplace_back([&, rank] {
      ThreadTransport transport(group, rank);
      try {
        body(transport);
      } catch (...) {
        errors[size_t(rank)] = std::current_exception();
      }
      group.leave(rank);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

inline std::string messageOf(const std::exception_ptr& error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

} // namespace commprof::compress
