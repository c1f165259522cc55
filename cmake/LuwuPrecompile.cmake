# Headers of other projects are most of what a file compiles; they are compiled once for each set of
# flags (docs/adr/0006-precompiled-headers.md). Ours are not among them: a change of one must not
# rebuild everything.
#
# luwu_use_precompiled(NAME luwu_pch|luwu_test_pch "DEPS")   DEPS decide whether gRPC's come along
option(LUWU_PCH "Precompile headers of other projects" OFF)

set(luwu_grpc_modules luwu_proto luwu_rpc luwu_service luwu_daemon luwu_client luwu_cli)

# REUSE_FROM takes no target with other flags: position-independent programs get the libraries'.
function(luwu_use_precompiled name pch deps)
  if(NOT LUWU_PCH)
    return()
  endif()
  foreach(module IN LISTS luwu_grpc_modules)
    if(module IN_LIST deps AND TARGET ${pch}_grpc)
      set(pch ${pch}_grpc)
      break()
    endif()
  endforeach()
  get_target_property(type ${name} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
  # What fmt's header was precompiled with; a program that links only libluwu does not have it.
  target_compile_definitions(${name} PRIVATE
    $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>)
  target_precompile_headers(${name} REUSE_FROM ${pch})
endfunction()

if(NOT LUWU_PCH)
  return()
endif()

# The first for ccache. GCC 12 warns of impossible sizes inside std::string, and takes that for our
# code once the headers are precompiled.
target_compile_options(luwu_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess -Wno-array-bounds -Wno-restrict
    -Wno-stringop-overflow -Wno-stringop-overread>)

function(luwu_precompiled name)  # luwu_precompiled(NAME DEPS lib ... HEADERS <a.h> ...)
  cmake_parse_arguments(ARG "" "" "DEPS;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE luwu_options ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

set(headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque>
  <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread>
  <utility> <vector> <absl/status/status.h> <absl/status/statusor.h> <fmt/format.h>)
set(libraries absl::status absl::statusor fmt::fmt)
set(test_headers <random> <gtest/gtest.h>)
luwu_precompiled(luwu_pch DEPS ${libraries} HEADERS ${headers})
if(LUWU_TESTS)
  luwu_precompiled(luwu_test_pch DEPS ${libraries} GTest::gtest HEADERS ${headers} ${test_headers})
  luwu_test_options(luwu_test_pch)
endif()
if(LUWU_GRPC)
  find_package(nlohmann_json REQUIRED)
  set(grpc_headers <google/protobuf/generated_message_util.h> <google/protobuf/map_field_inl.h>
    <google/protobuf/message.h> <google/protobuf/repeated_field.h> <grpcpp/grpcpp.h>
    <grpcpp/support/client_callback.h> <nlohmann/json.hpp>)
  set(grpc_libraries protobuf::libprotobuf PkgConfig::GRPCPP nlohmann_json::nlohmann_json)
  luwu_precompiled(luwu_pch_grpc DEPS ${libraries} ${grpc_libraries}
    HEADERS ${headers} ${grpc_headers})
  if(LUWU_TESTS)
    luwu_precompiled(luwu_test_pch_grpc DEPS ${libraries} ${grpc_libraries} GTest::gtest
      HEADERS ${headers} ${test_headers} ${grpc_headers})
    luwu_test_options(luwu_test_pch_grpc)
  endif()
endif()
