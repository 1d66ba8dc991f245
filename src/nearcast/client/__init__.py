"""The SDK: connect, publish, subscribe, ask for history."""
