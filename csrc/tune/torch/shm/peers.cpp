#include "tune/torch/shm/peers.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tune/shm/team.h"
#include "tune/torch/shm/dense.h"

namespace commprof::tune {

namespace {

// Header of a message. The payload, or the reason as text, comes after it.
struct Head {
  shm::Team::Intent intent;
  int32_t global_rank = 0;
  uint32_t reason_bytes = 0; // above 0: the sender gave up
};
static_assert(sizeof(Head) == 56);

// giveUp() waits at most this long until its message has been sent.
constexpr auto kPatience = std::chrono::seconds(1);

at::Tensor newFrame() {
  return at::empty({int64_t(sizeof(Head) + Peers::kMostPayload)}, at::kByte);
}

Head headOf(const at::Tensor& frame) {
  Head head;
  std::memcpy(&head, bytesOf(frame), sizeof head);
  return head;
}

std::byte* payloadOf(const at::Tensor& frame) {
  return bytesOf(frame) + sizeof(Head);
}

// Waits up to kPatience, by means of a detached thread. After a timeout of
// gloo's own wait, the group would be unusable.
void waitBriefly(std::vector<c10::intrusive_ptr<c10d::Work>> works) {
  auto sent = std::make_shared<std::promise<void>>();
  const std::future<void> done = sent->get_future();
  std::thread([works = std::move(works), sent] {
    try {
      for (const auto& work : works) {
        work->wait();
      }
    } catch (const std::exception&) {
      // Ignored: the peers detect the failure themselves.
    }
    sent->set_value();
  }).detach();
  done.wait_for(kPatience);
}

std::string nameOf(const Head& head) {
  return "rank " + std::to_string(head.global_rank);
}

} // namespace

// gloo's tags have 31 bits.
int Peers::nextTag() {
  return int(exchanges_++ & 0x7fffffffu);
}

// Called before send(): a message with a posted receive needs no further
// wake-up.
Peers::Messages Peers::receive(int tag) {
  Messages messages;
  messages.timeout_ = std::chrono::milliseconds(timeout_ms_.load());
  for (int host = 0; host < across_->getSize(); ++host) {
    messages.frames_.push_back(newFrame());
    if (host != across_->getRank()) {
      std::vector<at::Tensor> into{messages.frames_.back()};
      messages.receives_.push_back(across_->recv(into, host, tag));
    }
  }
  return messages;
}

void Peers::send(
    const at::Tensor& frame,
    size_t bytes,
    int tag,
    std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  std::vector<at::Tensor> out{frame.narrow(0, 0, int64_t(bytes))};
  for (int host = 0; host < across_->getSize(); ++host) {
    if (host != across_->getRank()) {
      works.push_back(across_->send(out, host, tag));
    }
  }
}

Peers::Messages Peers::startExchange(
    const shm::Team::Intent& intent,
    std::span<const std::byte> payload) {
  const int tag = nextTag();
  Messages messages = receive(tag);
  const at::Tensor& frame = messages.frames_[size_t(across_->getRank())];
  const Head head{intent, global_rank_, 0};
  std::memcpy(bytesOf(frame), &head, sizeof head);
  shm::copyBytes(payloadOf(frame), payload.data(), payload.size());
  send(frame, sizeof head + payload.size(), tag, messages.sends_);
  return messages;
}

void Peers::giveUp(const std::string& why) noexcept {
  try {
    const at::Tensor frame = newFrame();
    const size_t bytes = std::min(why.size() + 1, kMostPayload);
    const Head head{{}, global_rank_, uint32_t(bytes)};
    std::memcpy(bytesOf(frame), &head, sizeof head);
    std::memcpy(payloadOf(frame), why.c_str(), bytes);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    send(frame, sizeof head + bytes, nextTag(), works);
    waitBriefly(std::move(works));
  } catch (const std::exception&) {
    // Ignored: the error that made this rank give up has already been reported.
  }
}

void Peers::Messages::wait() {
  for (const auto& work : receives_) {
    work->wait(timeout_);
  }
  check();
  // Sends are awaited last: a rank that gave up receives no messages.
  for (const auto& work : sends_) {
    work->wait(timeout_);
  }
}

void Peers::Messages::check() const {
  const Head first = headOf(frames_[0]);
  for (const at::Tensor& frame : frames_) {
    const Head head = headOf(frame);
    if (head.reason_bytes != 0) {
      const auto* reason = reinterpret_cast<const char*>(payloadOf(frame));
      throw std::runtime_error(
          nameOf(head) + " gave up: " +
          std::string(reason, strnlen(reason, head.reason_bytes)));
    }
  }
  for (const at::Tensor& frame : frames_) {
    const Head head = headOf(frame);
    if (head.intent != first.intent) {
      throw std::runtime_error(
          "the ranks' calls differ: " + nameOf(first) + " does " +
          first.intent.text() + ", " + nameOf(head) + " does " +
          head.intent.text());
    }
  }
}

std::vector<const std::byte*> Peers::Messages::payloads() const {
  std::vector<const std::byte*> payloads;
  for (const at::Tensor& frame : frames_) {
    payloads.push_back(payloadOf(frame));
  }
  return payloads;
}

} // namespace commprof::tune
