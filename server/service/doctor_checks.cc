#include "server/service/doctor_checks.h"

#include "common/base/bytes.h"

namespace luwu::doctor {
namespace {

Finding CheckDirect(const StorageFacts& facts) {
  if (facts.direct) return Ok(Topic::kStorageDirect, "the file system takes O_DIRECT");
  return Warn(Topic::kStorageDirect, facts.path + " goes through the page cache",
              "put storage.path on ext4 or xfs of a local disk");
}

Finding CheckSpace(const StorageFacts& facts) {
  constexpr Topic kTopic = Topic::kStorageSpace;
  if (!facts.full.empty()) {
    return Err(
        kTopic, "writes wait: " + facts.full,
        "delete checkpoints or jobs, free space on the file system of storage.path, or raise "
        "storage.budget where that is what is full");
  }
  const uint64_t promised =
      facts.budget_bytes > facts.used_bytes ? facts.budget_bytes - facts.used_bytes : 0;
  const std::string summary = fmt::format("{} of the budget are unused, the disk has {}",
                                          HumanBytes(promised), HumanBytes(facts.free_bytes));
  // A budget that was taken from the disk shrinks a little with every other file there.
  if (facts.free_bytes < promised / 20 * 19) {
    return Warn(kTopic, summary,
                "free space on the file system of storage.path, or lower storage.budget");
  }
  return Ok(kTopic, summary);
}

Finding CheckWrites(const StorageFacts& facts) {
  constexpr Topic kTopic = Topic::kStorageWrites;
  if (!facts.failed.empty()) {
    return Err(kTopic, "nothing is written any more: " + facts.failed,
               "look at the disk (dmesg, smartctl), then restart the daemon");
  }
  if (!facts.damaged.empty()) {
    return Err(kTopic, "damaged: " + facts.damaged,
               "replace the disk if its own tests fail; go back to a checkpoint that is whole");
  }
  return Ok(kTopic, facts.path);
}

Finding CheckPeerControl(const PeerFacts& peer) {
  constexpr Topic kTopic = Topic::kPeerControl;
  const std::string where = fmt::format("{} at {}", peer.name, peer.control_address);
  if (!peer.answered.ok()) {
    return Err(
        kTopic,
        fmt::format("{} does not answer from here: {}", where, MessageOf(peer.answered.status())),
        "start that daemon; open its control port to this host; its address in [[nodes]] "
        "must be one that this host can dial");
  }
  if (*peer.answered != peer.name) {
    return Err(kTopic, fmt::format("{} is answered by {}", where, *peer.answered),
               "correct the control addresses in [[nodes]]: another daemon has this one");
  }
  return Ok(kTopic, where + " answers");
}

Finding CheckPeerData(const PeerFacts& peer) {
  constexpr Topic kTopic = Topic::kPeerData;
  const std::string where = fmt::format("{} at {}", peer.name, peer.data_address);
  if (peer.data.ok()) return Ok(kTopic, where + " takes connections");
  return Err(kTopic, fmt::format("{} takes no connection: {}", where, MessageOf(peer.data)),
             "start that daemon; open its data port; its address in [[nodes]] must be one that all "
             "hosts can dial");
}

}  // namespace

Findings CheckPeers(const std::vector<PeerFacts>& peers) {
  Findings findings;
  for (const PeerFacts& peer : peers) {
    findings.push_back(CheckPeerControl(peer));
    if (!peer.data_address.empty()) findings.push_back(CheckPeerData(peer));
  }
  return findings;
}

Findings CheckStorage(const StorageFacts& facts) {
  return {CheckDirect(facts), CheckSpace(facts), CheckWrites(facts)};
}

}  // namespace luwu::doctor
