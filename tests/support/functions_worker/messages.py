"""The part of the Functions RPC protocol the tests speak, as protobuf classes built from a table.

Building them at import needs no compiler and no generated files. Only what a timer, queue, Service Bus or
HTTP trigger uses is listed; protobuf keeps fields it does not know, so the rest of the protocol does no harm.
"""

from types import SimpleNamespace

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory

PACKAGE = "AzureFunctionsRpcMessages"
EVENT_STREAM = ("AzureFunctionsRpcMessages.FunctionRpc", "EventStream")

# An unindented line opens a message. Below it stand its enums (values count from 0) and its fields:
# number, type (after `repeated`, or `map` from string), name; `group/name` is a member of that oneof.
TABLE = """
StreamingMessage
    1 string request_id
    2 RpcLog content/rpc_log
    4 InvocationRequest content/invocation_request
    5 InvocationResponse content/invocation_response
    8 FunctionLoadRequest content/function_load_request
    9 FunctionLoadResponse content/function_load_response
    16 WorkerInitResponse content/worker_init_response
    17 WorkerInitRequest content/worker_init_request
    20 StartStream content/start_stream
    25 FunctionEnvironmentReloadRequest content/function_environment_reload_request
    26 FunctionEnvironmentReloadResponse content/function_environment_reload_response
    29 FunctionsMetadataRequest content/functions_metadata_request
    30 FunctionMetadataResponse content/function_metadata_response
StartStream
    2 string worker_id
WorkerInitRequest
    1 string host_version
    2 map string capabilities
    4 string worker_directory
    5 string function_app_directory
WorkerInitResponse
    2 map string capabilities
    3 StatusResult result
    4 WorkerMetadata worker_metadata
WorkerMetadata
    1 string runtime_name
    2 string runtime_version
    3 string worker_version
    4 string worker_bitness
    5 map string custom_properties
StatusResult
    enum Status Failure Success Cancelled
    1 string result
    2 RpcException exception
    3 repeated RpcLog logs
    4 Status status
RpcException
    1 string stack_trace
    2 string message
    3 string source
    4 bool is_user_exception
    5 string type
RpcLog
    enum Level Trace Debug Information Warning Error Critical None
    enum RpcLogCategory User System CustomMetric
    1 string invocation_id
    2 string category
    3 Level level
    4 string message
    5 string event_id
    6 RpcException exception
    8 RpcLogCategory log_category
FunctionEnvironmentReloadRequest
    1 map string environment_variables
    2 string function_app_directory
FunctionEnvironmentReloadResponse
    1 WorkerMetadata worker_metadata
    2 map string capabilities
    3 StatusResult result
FunctionsMetadataRequest
    1 string function_app_directory
FunctionMetadataResponse
    1 repeated RpcFunctionMetadata function_metadata_results
    2 StatusResult result
    3 bool use_default_metadata_indexing
RpcFunctionMetadata
    1 string directory
    2 string script_file
    3 string entry_point
    4 string name
    6 map BindingInfo bindings
    7 bool is_proxy
    8 StatusResult status
    9 string language
    10 repeated string raw_bindings
    13 string function_id
    14 bool managed_dependency_enabled
    15 RpcRetryOptions retry_options
    16 map string properties
BindingInfo
    enum Direction in out inout
    enum DataType undefined string binary stream
    2 string type
    3 Direction direction
    4 DataType data_type
    5 map string properties
RpcRetryOptions
    enum RetryStrategy exponential_backoff fixed_delay
    2 int32 max_retry_count
    3 Duration delay_interval
    4 Duration minimum_interval
    5 Duration maximum_interval
    6 RetryStrategy retry_strategy
FunctionLoadRequest
    1 string function_id
    2 RpcFunctionMetadata metadata
    3 bool managed_dependency_enabled
FunctionLoadResponse
    1 string function_id
    2 StatusResult result
    3 bool is_dependency_downloaded
InvocationRequest
    1 string invocation_id
    2 string function_id
    3 repeated ParameterBinding input_data
    4 map TypedData trigger_metadata
    5 RpcTraceContext trace_context
    6 RetryContext retry_context
InvocationResponse
    1 string invocation_id
    2 repeated ParameterBinding output_data
    3 StatusResult result
    4 TypedData return_value
ParameterBinding
    1 string name
    2 TypedData rpc_data/data
TypedData
    1 string data/string
    2 string data/json
    3 bytes data/bytes
    4 bytes data/stream
    5 RpcHttp data/http
    6 sint64 data/int
    7 double data/double
    8 CollectionBytes data/collection_bytes
    9 CollectionString data/collection_string
    10 CollectionDouble data/collection_double
    11 CollectionSInt64 data/collection_sint64
RpcHttp
    1 string method
    2 string url
    3 map string headers
    4 TypedData body
    10 map string params
    12 string status_code
    15 map string query
    16 bool enable_content_negotiation
    19 repeated RpcHttpCookie cookies
RpcHttpCookie
    1 string name
    2 string value
CollectionBytes
    1 repeated bytes bytes
CollectionString
    1 repeated string string
CollectionDouble
    1 repeated double double
CollectionSInt64
    1 repeated sint64 sint64
RpcTraceContext
    1 string trace_parent
    2 string trace_state
    3 map string attributes
RetryContext
    1 int32 retry_count
    2 int32 max_retry_count
    3 RpcException exception
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
}


def _set_type(field: _Field, kind: str, message: descriptor_pb2.DescriptorProto) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in {enum.name for enum in message.enum_type}:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{message.name}.{kind}"
    else:
        package = "google.protobuf" if kind == "Duration" else PACKAGE
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"


def _add_field(message: descriptor_pb2.DescriptorProto, number: str, *shape: str) -> None:
    *label, kind, name = shape
    group, _, name = name.rpartition("/")
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if group:
        groups = [oneof.name for oneof in message.oneof_decl]
        if group not in groups:
            message.oneof_decl.add(name=group)
            groups.append(group)
        field.oneof_index = groups.index(group)
    if label:
        field.label = _Field.LABEL_REPEATED
    if label != ["map"]:
        _set_type(field, kind, message)
        return
    # On the wire a map is a repeated entry of a nested message whose name is derived from the field's.
    entry = message.nested_type.add(name="".join(map(str.capitalize, name.split("_"))) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), kind, message)
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"


def _build() -> SimpleNamespace:
    duration = duration_pb2.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="functions_rpc.proto", package=PACKAGE, syntax="proto3", dependency=[duration.name]
    )
    message = None
    for line in filter(str.strip, TABLE.splitlines()):
        words = line.split()
        if not line.startswith(" "):
            message = file.message_type.add(name=words[0])
        elif words[0] == "enum":
            enum = message.enum_type.add(name=words[1])
            for number, value in enumerate(words[2:]):
                enum.value.add(name=value, number=number)
        else:
            _add_field(message, *words)
    # A pool of its own: an app that brings the full protocol must not clash with this one.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(duration.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    types = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in names)
    return SimpleNamespace(**dict(zip(names, map(message_factory.GetMessageClass, types), strict=True)))


PROTOCOL = _build()
