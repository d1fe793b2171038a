"""What tests stand on: servers, fresh shards, and the services in this process or in their own."""
