"""Files of events, as TensorBoard reads them: messages in protobuf's forms, and their writer."""
