// Plain structs <-> protobuf for what both programs exchange. Conversion refuses enum values that
// this program does not know; whether the values make sense is for ValidateJobSpec, ValidateNodes
// and ValidateHyperParameters to say, which every receiver calls next.
//
// Called by the daemon's services and the client's session, any thread. Exists so that generated
// types stop at those two places.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "luwu/v1/types.pb.h"

namespace luwu::rpc {

v1::JobSpec ToProto(const JobSpec& spec);
// kUnsupported for a dtype, kInvalidArgument for any other enum; names the field and the number.
StatusOr<JobSpec> FromProto(const v1::JobSpec& proto);

v1::HyperParameters ToProto(const HyperParameters& values);
HyperParameters FromProto(const v1::HyperParameters& proto);

v1::Node ToProto(const Node& node);
Node FromProto(const v1::Node& proto);

}  // namespace luwu::rpc
