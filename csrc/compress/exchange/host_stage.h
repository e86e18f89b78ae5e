// A compressor's work on several hosts: gradients are added up within each host
// through shared memory, what comes of it is compressed and exchanged between
// hosts only, and shared within the host again.
//
// Each of the first ranks of a host, as many as the smallest host has,
// exchanges some of a bucket's parameters with the ranks of its place on the
// other hosts. Parameters stay whole: residuals and factors belong to them.
//
// Where DDP rebuilds its buckets, or a state was loaded, a rank may hold the
// residual of a parameter that another rank of its host exchanges. It adds the
// residual to its own gradient, so that the residual reaches that rank.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compress/bucket.h"
#include "compress/compressor.h"
#include "shm/slices.h"
#include "shm/team.h"

namespace commprof::compress {

// As many consecutive parts as owners, of whole slots, as equal as these allow;
// in values of the bucket.
std::vector<shm::Slice> wholeSlots(std::span<const Slot> slots, int owners);

// Used by one thread.
class HostStage {
 public:
  // `world`: ranks on all `hosts`.
  HostStage(std::shared_ptr<shm::Team> team, int owners, int hosts, int world);

  // Blocking. Leaves the mean over all ranks in the bucket, as
  // Compressor::run(). `transport` joins the ranks of this place on all hosts;
  // null where the smallest host has no such place. What it throws ends the
  // stage for all ranks of this host.
  void run(
      Compressor& compressor,
      const Bucket& bucket,
      Transport* transport,
      BucketReport& report);

  // Nothing more will come of this rank: ends the stage for this host.
  void abandon(const std::string& why) noexcept;

 private:
  // This rank's part, scaled so that the mean over hosts is the mean over
  // ranks; of 0 values if there is none.
  Bucket addUp(
      Compressor& compressor,
      const Bucket& bucket,
      BucketReport& report);
  void handOver(Compressor& compressor, const Bucket& bucket, const Slot& slot);
  void share(const Bucket& bucket, BucketReport& report);
  // A bucket that became NaN leaves residuals as they were.
  void takeBack(Compressor& compressor, const Bucket& bucket);

  const std::shared_ptr<shm::Team> team_;
  const int owners_;
  const float scale_;
  std::vector<shm::Slice> slices_;
  std::vector<Slot> slots_; // of the part
  // Of this bucket, by parameter.
  std::vector<std::pair<Slot, std::vector<float>>> handed_over_;
};

} // namespace commprof::compress
