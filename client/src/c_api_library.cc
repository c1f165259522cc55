// luwu.h: the library itself.
#include <atomic>

#include "client/include/luwu/luwu.h"
#include "client/src/error.h"
#include "client/src/library.h"
#include "common/base/log.h"
#include "common/base/sync.h"

namespace luwu::client {
namespace {

// The user's sink, behind the library's.
struct UserSink {
  Mutex mutex;
  luwu_log_sink sink LUWU_GUARDED_BY(mutex) = nullptr;
  void* context LUWU_GUARDED_BY(mutex) = nullptr;
};
UserSink& TheUserSink() {
  static UserSink& sink =
      *std::make_unique<UserSink>().release();  // never destroyed: threads may log at exit
  return sink;
}

// Never stderr: without a user's sink, lines are dropped.
void PassOn(LogLevel level, const char* line, void*) {
  MutexLock lock(TheUserSink().mutex);
  if (TheUserSink().sink == nullptr) return;
  TheUserSink().sink(static_cast<int32_t>(level), line, TheUserSink().context);
}
static_assert(static_cast<int>(LogLevel::kDebug) == 0 && static_cast<int>(LogLevel::kError) == 3);

}  // namespace
}  // namespace luwu::client

using luwu::client::Guarded;
using luwu::client::Library;

extern "C" {

int32_t luwu_init(uint32_t abi_version) {
  return Guarded([&] { return Library::Get().Init(abi_version); });
}

const char* luwu_version(void) { return LUWU_VERSION_TEXT; }

const char* luwu_strerror(int32_t status) { return luwu::client::StatusName(status); }

const char* luwu_last_error(void) { return luwu::client::LastErrorText(); }

int32_t luwu_set_log_sink(luwu_log_sink sink, void* context, int32_t level) {
  return Guarded([&]() -> luwu::Status {
    if (sink != nullptr && (level < 0 || level > 3)) {
      return luwu::Error(luwu::ErrorCode::kInvalidArgument,
                         "level is {}; it must be 0 (debug) to 3 (error)", level);
    }
    luwu::SetLogSink(&luwu::client::PassOn, nullptr);
    luwu::client::UserSink& user = luwu::client::TheUserSink();
    luwu::MutexLock lock(user.mutex);
    user.sink = sink;
    user.context = context;
    luwu::SetLogLevel(sink == nullptr ? luwu::LogLevel::kOff : static_cast<luwu::LogLevel>(level));
    return luwu::OkStatus();
  });
}

}  // extern "C"
