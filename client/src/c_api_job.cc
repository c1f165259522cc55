// luwu.h: jobs as a whole, without a session.
#include "client/include/luwu/luwu.h"
#include "client/src/c_structs.h"
#include "client/src/job_deleter.h"
#include "client/src/library.h"

using luwu::client::Guarded;
using luwu::client::Library;

extern "C" {

int32_t luwu_job_delete(const char* endpoints, const char* job, uint32_t force,
                        uint32_t timeout_ms) {
  return Guarded([&]() -> luwu::Status {
    RETURN_IF_ERROR(Library::Get().CheckReady());
    ASSIGN_OR_RETURN(const luwu::client::DeleteOptions options,
                     luwu::client::ToDeleteOptions(endpoints, job, force, timeout_ms));
    return luwu::client::DeleteJob(options);
  });
}

}  // extern "C"
