// Where the plugin's records go: into a trace of its own or, if the plugin is
// part of the module with which commprof captures torch's calls, into the trace
// that this capture has open. Also the switch that ends all recording.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace commprof::nccl {

// Makes the plugin a part of commprof's capture: it then has no trace of its
// own. Called before all other functions.
void join() noexcept;
bool isJoined() noexcept;

// True unless the plugin is switched off. Any thread.
bool isOn() noexcept;
// True while records are taken.
bool isRecording() noexcept;

// The level of recording. Each level includes the levels listed before it.
enum class Level : uint8_t {
  kAuto, // $COMMPROF_NCCL is "auto" or not set: kKernels if that costs little
  kOperations, // calls, and the operations that NCCL makes of them
  kKernels, // times on the GPU
  kNetwork, // transfers by NCCL's proxy
};
// Throws std::runtime_error if the variable has an unknown value.
Level levelFromEnvironment();
// Prints once, if this is the first rank, that NCCL is recorded.
void sayRecorded() noexcept;
void setFirstRank(bool first) noexcept;

// Switches the plugin off for good, with one line on stderr. NCCL goes on. Once
// NCCL has read the mask again, it reports only events that the user's plugin
// asks for.
void switchOff(const std::string& reason) noexcept;

// Sets the variable of NCCL that holds the mask of events; null: none.
void holdMask(int* mask) noexcept;
// askFor() sets the events that this plugin asks for, askForUser() those that
// the user's plugin asks for.
void askFor(int events) noexcept;
void askForUser(int events) noexcept;
// True if this plugin asks for events of this type.
bool isAsked(uint64_t type) noexcept;
// The mask of events for NCCL.
int mask() noexcept;

// The process id as NCCL knows it: unchanged by a fork.
int thisProcess() noexcept;

struct Place {
  int rank;
  int world_size;
};

// Place of this process in its job, according to its launcher's environment, by
// the rules of commprof/launched.py; none if no launcher set a place.
std::optional<Place> placeFromLauncher();

// Opens the trace in the directory $COMMPROF_OUT, once per process. Throws
// std::runtime_error with the reason and the next step, or std::system_error.
void openRun(const Place& place);
bool isRunOpen() noexcept;

} // namespace commprof::nccl
