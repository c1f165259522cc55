# luwu_library(NAME SOURCES a.cc ... DEPS lib ...)         one static library per module
# luwu_test(NAME [ONE_THREAD] LABELS unit ... SOURCES a_test.cc ... DEPS lib ...)
#   One GoogleTest program. ONE_THREAD: it starts no thread, else it aborts.
# Sources and link lists are explicit: a missing arrow between modules is a link error.

add_library(luwu_options INTERFACE)
target_include_directories(luwu_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(luwu_options INTERFACE
  -Wall -Wextra -Werror
  -ffp-contract=off  # a * b + c rounds twice on every CPU: same bits everywhere
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>)
if(LUWU_SANITIZE)
  target_compile_options(luwu_options INTERFACE
    -fsanitize=${LUWU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(luwu_options INTERFACE -fsanitize=${LUWU_SANITIZE})
endif()

# Of test programs in the release build: their own code need not be fast, and takes long to compile.
function(luwu_test_options name)
  if(NOT LUWU_SANITIZE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1;-g0>)
  endif()
endfunction()

include(LuwuPrecompile)

# Of a static library that only tests link, compiled as they are.
function(luwu_test_library name deps)
  luwu_test_options(${name})
  luwu_use_precompiled(${name} luwu_test_pch "${deps}")
endfunction()

# All libraries without tests and programs; scripts/test builds it with clang.
add_custom_target(luwu_libraries)

function(luwu_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC luwu_options ${ARG_DEPS})
  luwu_use_precompiled(${name} luwu_pch "${ARG_DEPS}")
  set_property(GLOBAL APPEND PROPERTY LUWU_LIBRARIES ${name})
  add_dependencies(luwu_libraries ${name})
endfunction()

function(luwu_test name)
  cmake_parse_arguments(ARG "ONE_THREAD" "TIMEOUT" "LABELS;SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(labels ${ARG_LABELS} cxx)  # cxx: every GoogleTest program, what the sanitizers run
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE luwu_options ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  luwu_test_options(${name})
  luwu_use_precompiled(${name} luwu_test_pch "${ARG_DEPS}")
  if(ARG_ONE_THREAD AND NOT LUWU_SANITIZE)
    target_link_libraries(${name} PRIVATE luwu_no_threads)
  endif()
  # ThreadSanitizer has nothing to see in one thread; and the packaged RocksDB is not built for it,
  # so that races seem to be where RocksDB's locks are.
  if(LUWU_SANITIZE STREQUAL "thread" AND (ARG_ONE_THREAD OR "rocksdb" IN_LIST ARG_LABELS))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT})
  # luwu_tests_unit, luwu_tests_cxx, ... build the programs of one label.
  foreach(label IN LISTS labels)
    if(NOT TARGET luwu_tests_${label})
      add_custom_target(luwu_tests_${label})
    endif()
    add_dependencies(luwu_tests_${label} ${name})
  endforeach()
endfunction()
